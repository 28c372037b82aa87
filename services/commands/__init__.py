"""The commands of `raylay`, one file a group; cli.py puts them together."""
