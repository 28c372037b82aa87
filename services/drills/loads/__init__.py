"""The load of a drill: publishers and consumers, and what each of them was told."""
