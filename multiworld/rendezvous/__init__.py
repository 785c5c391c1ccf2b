"""How members find each other: stores, claims of ranks, generations, and the connections between them."""
