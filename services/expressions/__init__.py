"""The language of content filters: text, a tree, one Python function (docs/filters.md).

    lexer.py ─▶ parser.py ─▶ tree.py ─▶ compiler.py ─▶ a function of one parsed message
                                             ├─ values.py     what operators do with values
                                             ├─ patterns.py   LIKE and the regular expressions
                                             └─ functions/    the functions by groups

`expression.py` puts them together; `index.py` asks many filters at once. A message is what a
message type made of its body: dicts, lists and plain values. Nothing here reads a clock, a file or
chance: what a function needs of those is in the `Surroundings` that it is handed.
"""
