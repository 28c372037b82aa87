"""Connections, whatever they are for: framed ones, streams that go over them, and bad lines.

framed.FramedConnection, framed.Outbox      reading, coalesced writing, closing
carried.CarriedStream, carried.Carrier      a connection that goes over another one
impaired.Line                               a bad network, for drills
"""
