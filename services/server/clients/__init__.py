"""The connections of clients: logon, subscriptions, replays, queries, acknowledgments."""
