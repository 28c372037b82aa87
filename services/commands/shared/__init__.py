"""Options, output and error lines that several commands share."""
