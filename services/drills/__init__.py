"""Drills: break a running fabric on purpose, judge what became of every message, write a report.

scenario    what is done and when, as data                                  (pure)
history     what happened, as plain values in order of time                 (pure)
checkers    the laws over a history                                         (pure)
recorded    real processes' logs, journals and clients as a history
"""
