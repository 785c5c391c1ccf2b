"""The meeting of members: claims of ranks, generations, and the connections between them."""
