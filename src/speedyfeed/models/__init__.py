"""News encoders, user encoders, and the recommender made of one of each."""
