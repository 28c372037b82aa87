"""How long messages took, from the traces of a fabric."""
