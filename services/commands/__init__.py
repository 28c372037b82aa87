"""The commands of `raylay`, one file a group; services/cli.py puts them together."""
