"""Records of fabrics, and how running and stopped ones are found by them."""
