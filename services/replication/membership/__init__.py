"""The instances of a fabric, their identities, and the rules by which two of them may be linked."""
