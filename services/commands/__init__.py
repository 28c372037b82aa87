"""The commands of `raylay`, one file for each group. services/cli.py puts them together."""
