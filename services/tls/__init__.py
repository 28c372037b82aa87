"""TLS of connections: what it is configured by, the files it reads, and the stream itself.

config    TlsConfig: values only
files     contexts from certificate files, checked and renewed; what a certificate says of a peer
problems  why a handshake failed, as one sentence that says what to do
stream    TlsStream: the TLS of one connection, between its socket and its protocol
authority a CA of one's own, and certificates by it
dialling  connections to others, with TLS or without
"""
