"""How members find each other: claims of ranks, generations, and the connections between them."""
