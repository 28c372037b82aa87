"""The actions of an instance: steps that it performs by itself when something happens
(behaviour.md 8). Pure: the process beside the instance (`services/processes/actions`) performs the
steps."""
