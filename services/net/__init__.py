"""Connections, whatever they are for: framed ones, streams that go over them, TLS, and bad lines.

framed.FramedConnection, framed.WriteQueue  reading, coalesced writing, closing
tunnel.TunnelStream, tunnel.TunnelHost      a connection that goes over another one
liveness.SilenceDetector                    whether a connection that nothing comes over is lost
impaired.ImpairedLine                       a bad network, for drills
dialling                                    connections to others, with TLS or without
tls_config.TlsConfig                        what TLS is configured by: values only
tls_files                                   contexts from certificate files, checked and renewed
tls_problems                                why a handshake failed, and what to do
tls_stream.TlsStream                        the TLS of one connection, below its protocol
tls_records.TlsRecordCounter                where the records of a TLS stream end
tls_authority.CertificateAuthority          a CA of one's own, and certificates by it
"""
