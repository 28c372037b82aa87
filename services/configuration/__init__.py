"""The configuration of a fabric: one model, written in Python or in a YAML file.

`model.FabricSettings` is what both give; `builder.FabricBuilder` writes it in a few calls;
`yaml_file.load` reads a file with the same calls, so both are checked by the same rules.
"""
