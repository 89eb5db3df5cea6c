"""JSON of requests and answers by noun: fields, limits and descriptions, as OpenAPI shows them."""
