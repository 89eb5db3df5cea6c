"""Many processes training one model: their collectives, and the partition of a batch over them."""
