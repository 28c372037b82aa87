"""What TLS costs a publisher: the same instance, by its plain transport and by one with TLS."""

from __future__ import annotations

import datetime
from pathlib import Path

from context import Bench, Figure, body, publish_all

from raylay.services.client import Client
from raylay.services.fabric import Fabric, Topic

NAMES = ("tls_publish_plain", "tls_publish", "tls_publish_ratio")
MESSAGES = 200_000
ROUNDS = 5


def _certificate(directory: Path) -> tuple[str, str]:
    """A certificate for this host that is its own CA, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    certificate, private_key = directory / "bench.crt", directory / "bench.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private_key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(certificate), str(private_key)


async def tls_publish(bench: Bench) -> list[Figure]:
    """`single_persisted_128B_1pub` by both transports in turn, the best of each."""
    certificate, key = _certificate(bench.directory)
    tls = {"certificate": certificate, "private_key": key}
    fabric = Fabric("tls", topics=[Topic("bench/.*")], logs={"target": "file", "level": "warning"})
    fabric.instance("tls-1", transports=[{"name": "secure", "tls": tls}])
    fabric.start(bench.directory / "tls")
    try:
        (status,) = fabric.status()["instances"]
        addresses = {each["name"]: each["address"] for each in status["transports"]}
        best = {"client": 0.0, "secure": 0.0}
        message = body(128)
        for number in range(ROUNDS):
            for name in best:
                given = {"ca_file": certificate, "server_name": "localhost"}
                async with Client(
                    f"bench-{name}-{number}",
                    servers=[addresses[name]],
                    tls=given if name == "secure" else None,
                ) as client:
                    await publish_all(client, "bench/tls", message, MESSAGES // 20)
                    took_s = await publish_all(client, "bench/tls", message, MESSAGES)
                best[name] = max(best[name], MESSAGES / took_s)
    finally:
        fabric.stop()
    plain, secure = best.values()
    return [
        Figure("tls_publish_plain", plain, "messages/s"),
        Figure("tls_publish", secure, "messages/s"),
        Figure("tls_publish_ratio", secure / plain, "ratio"),
    ]
