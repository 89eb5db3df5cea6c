"""Search for the articles whose embeddings score highest: exactly, or along HNSW graphs."""
