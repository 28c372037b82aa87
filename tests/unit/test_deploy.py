"""What deploy/ holds can be read by what it is for, and refers to what there is."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from raylay.services.configuration.files import load_fabric
from raylay.services.fabric.plan import (
    FabricRecord,
    bring_up_to_date,
    free_port,
    instance_config,
)
from raylay.services.telemetry import metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TELEMETRY = DEPLOY / "telemetry"
CLUSTERS = ("cluster.yaml", "deploy/aws.yaml", "deploy/gcp.yaml")


def read(path: str) -> dict[str, Any]:
    found = yaml.safe_load((ROOT / path).read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.covers("Deployment", "cloud files, manifests")
@pytest.mark.parametrize("path", CLUSTERS)
def test_rays_launcher_takes_the_cluster_files(path: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(read(path))
    validate_config(config)
    types = {name: kind.get("labels") for name, kind in config["available_node_types"].items()}
    if config["provider"]["type"] != "local":
        regions = {name: labels for name, labels in types.items() if labels}
        assert len(regions) == 3
        assert all(labels == {"region": name} for name, labels in regions.items())


@pytest.mark.parametrize("path", CLUSTERS)
def test_cluster_files_mount_what_there_is_and_start_it(path: str) -> None:
    config = read(path)
    mounts = config["file_mounts"]
    assert (ROOT / mounts["~/raylay/deploy"]).is_dir()
    commands = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    commands += config["setup_commands"]
    scripts = re.findall(r"~/raylay/deploy/([\w.]+)", "\n".join(commands))
    assert set(scripts) == {"install.sh", "start.sh"}
    assert all((DEPLOY / "node" / name).is_file() for name in scripts)


@pytest.mark.parametrize("path", CLUSTERS)
def test_every_host_of_a_cluster_gets_the_credentials_of_the_head(path: str) -> None:
    guard = (DEPLOY / "node" / "guard.py").read_text()
    assert read(path)["cluster_synced_files"] == ["~/raylay/credentials"]
    assert 'CREDENTIALS = BASE / "credentials"' in guard
    mounted = read(path)["file_mounts"]
    assert not [place for place in mounted if "authority" in place], "the CA's key stays there"


@pytest.mark.covers("Configuration", "a fabric with TLS and authentication on every transport")
def test_the_guarded_fabric_asks_everybody_on_every_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load_fabric([DEPLOY / "guarded.yaml"])
    assert settings.unauthenticated == "refused"
    assert settings.groups() == load_fabric([ROOT / "examples" / "three_regions.yaml"]).groups()
    guard = (DEPLOY / "node" / "guard.py").read_text()
    record = FabricRecord("flights", "/data/flights", settings.to_json())
    bring_up_to_date(record, settings)
    for instance in settings.instances:
        config = instance_config(settings, record, instance)
        assert len(config.transports) == 2
        assert all(each.tls is not None for each in config.transports)
        modules = [config.authentication, config.entitlement, config.authenticator]
        modules += [config.replication_authentication, config.replication_entitlement]
        assert all(modules) and all(each.tls for each in config.destinations)
        used = [
            config.client_transports[0].tls.certificate,
            config.client_transports[0].tls.private_key,
        ]
        used += [config.client_transports[0].tls.ca_file, *(m.options["File"] for m in modules[:2])]
        used += [m.options["File"] for m in modules[3:]]
        used.append(config.authenticator.options["PasswordFileName"])
        for path in map(Path, used):
            assert path.is_relative_to(tmp_path / "raylay"), "~ is who starts the fabric"
            made = path.name if path.name.count("-") != 1 else path.name.partition("-")[2]
            assert made in guard or path.name in guard, path


@pytest.mark.parametrize("path", CLUSTERS)
def test_every_setting_that_the_scripts_use_is_given(path: str, tmp_path: Path) -> None:
    written = read(path)["setup_commands"][0].replace("~/raylay", str(tmp_path))
    subprocess.run(["bash", "-eu", "-c", written], check=True, timeout=60)
    given = set(re.findall(r"^([A-Z_]+)=", (tmp_path / "settings").read_text(), re.MULTILINE))
    used = set()
    for script in ("install.sh", "start.sh"):
        text = (DEPLOY / "node" / script).read_text()
        used |= set(re.findall(r"\$\{?([A-Z][A-Z_]+)\b", text))
    of_the_shell = {"PWD", "HOME", "PATH", "RAY_HEAD_IP", "RAY_OVERRIDE_LABELS"}
    assert used - of_the_shell == given


@pytest.mark.parametrize("path", sorted((DEPLOY / "node").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_bash(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=60)
    assert "set -euo pipefail" in path.read_text()


def manifests(*names: str) -> dict[tuple[str, str], Any]:
    """The documents of Kubernetes files, by kind and name."""
    documents = [
        document for name in names for document in yaml.safe_load_all((DEPLOY / name).read_text())
    ]
    named = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(named) == len(documents)
    return named


KUBERNETES = ("kuberay.yaml", "redis.yaml")


def test_the_manifests_refer_to_one_another(tmp_path: Path) -> None:
    named = manifests(*KUBERNETES)
    spec = named["RayCluster", "raylay"]["spec"]
    groups = spec["workerGroupSpecs"]
    labels = {group["labels"]["host"]: group["labels"]["region"] for group in groups}
    (tmp_path / "fabric.yaml").write_text(
        named["ConfigMap", "raylay-fabric"]["data"]["fabric.yaml"]
    )
    fabric = load_fabric([tmp_path / "fabric.yaml"])
    assert fabric.unauthenticated == "refused"
    assert fabric.groups() == load_fabric([ROOT / "examples" / "three_regions.yaml"]).groups()
    # One host for each instance, in the region of its group, with a volume and a Service.
    hosts = {each.node_labels["host"]: each for each in fabric.instances}
    assert labels == {host: instance.group for host, instance in hosts.items()}
    assert len(hosts) == len(fabric.instances)
    for host, instance in hosts.items():
        service = named["Service", f"raylay-{host}"]["spec"]
        assert service["selector"] == {"ray.io/cluster": "raylay", "raylay-instance": host}
        assert [each["targetPort"] for each in service["ports"]] == [instance.client_port]
    claims = [_checked_group(group, named) for group in groups]
    assert len(set(claims)) == len(claims) and all(
        ("PersistentVolumeClaim", claim) in named for claim in claims
    )
    for region in {each.lower() for each in labels.values()}:
        budget = named["PodDisruptionBudget", f"raylay-{region}"]["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"]["raylay-region"] == region
    host, port = spec["gcsFaultToleranceOptions"]["redisAddress"].split(":")
    service = named["Service", host.partition(".")[0]]
    assert [each["port"] for each in service["spec"]["ports"]] == [int(port)]
    job = named["RayJob", "raylay-up"]["spec"]
    assert job["clusterSelector"] == {"ray.io/cluster": "raylay"}


def _checked_group(group: dict[str, Any], named: dict[tuple[str, str], Any]) -> str:
    """Looks at the pod of one instance. Returns the claim of its volume."""
    pod, metadata = group["template"]["spec"], group["template"]["metadata"]
    host = group["labels"]["host"]
    assert group["groupName"] == metadata["labels"]["raylay-instance"] == host
    assert metadata["labels"]["raylay-region"] == group["labels"]["region"].lower()
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["matchLabelKeys"] == ["raylay-region"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert "raylay check instance /data/flights" in str(container["readinessProbe"])
    assert "--directory /data/flights" in named["RayJob", "raylay-up"]["spec"]["entrypoint"]
    claim = volumes["data"]["persistentVolumeClaim"]["claimName"]
    assert isinstance(claim, str)
    return claim


def pods() -> list[dict[str, Any]]:
    """The specifications of all pods of the Kubernetes files."""
    named = manifests(*KUBERNETES)
    spec = named["RayCluster", "raylay"]["spec"]
    groups = [
        spec["headGroupSpec"],
        *spec["workerGroupSpecs"],
        named["StatefulSet", "redis"]["spec"],
    ]
    return [group["template"]["spec"] for group in groups]


def test_no_pod_has_more_rights_than_it_needs() -> None:
    for pod in pods():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["fsGroup"] == security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        for volume in pod.get("volumes", ()):
            assert volume.get("secret", {"defaultMode": 0o440})["defaultMode"] == 0o440


def test_only_who_knows_the_password_reaches_the_heads_memory() -> None:
    """Whoever writes to that Redis runs code in the cluster."""
    named = manifests(*KUBERNETES)
    policy = named["NetworkPolicy", "redis"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"ray.io/cluster": "raylay"}}}]
    (container,) = named["StatefulSet", "redis"]["spec"]["template"]["spec"]["containers"]
    given = container["env"][0]["valueFrom"]["secretKeyRef"]
    options = named["RayCluster", "raylay"]["spec"]["gcsFaultToleranceOptions"]
    assert given == options["redisPassword"]["valueFrom"]["secretKeyRef"]
    assert "requirepass %s" in container["args"][0]
    conf = (DEPLOY / "redis.conf").read_text().splitlines()
    assert "protected-mode yes" in conf
    assert "include /etc/redis/raylay-password.conf" in conf


@pytest.mark.parametrize("name", KUBERNETES)
def test_kubernetes_and_its_operator_take_the_manifests(name: str) -> None:
    """By the published schemas, without a field that they do not name."""
    for document in yaml.safe_load_all((DEPLOY / name).read_text()):
        kind = document["kind"]
        if document["apiVersion"] == "ray.io/v1":
            schema = kuberay_schema(f"{kind.lower()}s")
            assert schema["properties"].keys() >= document.keys()
            jsonschema.validate(document, schema)
        else:
            kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


KUBERNETES_VERSION = "1.33"
"""The first in which `matchLabelKeys` of an affinity is stable."""


def kuberay_schema(plural: str) -> dict[str, Any]:
    """A schema of KubeRay's custom resource definitions, closed to fields that it does not name.

    The files in tests/fixtures/kuberay are `openAPIV3Schema` of version v1, without descriptions,
    of github.com/ray-project/kuberay (Apache-2.0), ray-operator/config/crd/bases, commit feeaf72fa.
    """
    packed = (ROOT / "tests" / "fixtures" / "kuberay" / f"{plural}.json.gz").read_bytes()
    schema = json.loads(gzip.decompress(packed))
    _close(schema)
    schema["properties"]["metadata"] = {"type": "object"}
    return dict(schema)


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for each in schema:
            _close(each)
    elif isinstance(schema, dict):
        loose = schema.get("x-kubernetes-preserve-unknown-fields")
        if isinstance(schema.get("properties"), dict) and not loose:
            schema.setdefault("additionalProperties", False)
        for key, each in schema.items():
            if key == "properties":
                for inner in each.values():
                    _close(inner)
            elif key != "additionalProperties" or isinstance(each, dict):
                _close(each)
        if schema.pop("x-kubernetes-int-or-string", False):
            schema.pop("anyOf", None)
            schema["type"] = ["integer", "string"]


def test_a_field_that_no_schema_has_is_found() -> None:
    document = manifests("kuberay.yaml")["RayCluster", "raylay"]
    document["spec"]["workerGroupSpecs"][0]["template"]["spec"]["volume"] = []
    with pytest.raises(jsonschema.ValidationError, match="volume"):
        jsonschema.validate(document, kuberay_schema("rayclusters"))


def test_the_manifests_break_none_of_kuberays_rules() -> None:
    """What the operator (1.5 and newer) refuses of a RayCluster and a RayJob."""
    named = manifests("kuberay.yaml")
    cluster, job = named["RayCluster", "raylay"], named["RayJob", "raylay-up"]["spec"]
    spec = cluster["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert "labels" not in group["rayStartParams"], "they stand beside rayStartParams"
        assert all(isinstance(value, str) for value in group["labels"].values())
    for group in spec["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    # Both say how the head remembers, and one of them only may.
    annotations = cluster["metadata"].get("annotations", {})
    assert not {"ray.io/external-storage-namespace", "ray.io/ft-enabled"} & set(annotations)
    assert spec["gcsFaultToleranceOptions"]["externalStorageNamespace"]
    # A RayJob tries again on a new cluster, which one on a cluster that is there does not get.
    assert not ("clusterSelector" in job and job.get("backoffLimit", 0))
    assert tuple(map(int, str(spec["rayVersion"]).split("."))) >= (2, 52), "for authOptions"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
@pytest.mark.parametrize("file", ["node/raylay-node@.service", "raylay@.service"])
def test_systemd_takes_the_unit(file: str, tmp_path: Path) -> None:
    source = DEPLOY / file
    unit = tmp_path / source.name.replace("@", "@root")
    text = source.read_text(encoding="utf-8")
    # It looks for the program, too.
    unit.write_text(text.replace("/opt/raylay/.venv/bin/raylay", sys.executable), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(source)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-300:]


def test_containers_are_open_to_this_machine_only() -> None:
    """The fabric of compose.yaml asks nobody for a password."""
    services = read("deploy/compose.yaml")["services"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@pytest.mark.parametrize("path", CLUSTERS)
def test_each_instance_of_a_pair_has_a_host_of_its_own(path: str, tmp_path: Path) -> None:
    config = read(path)
    fabric = load_fabric([DEPLOY / "guarded.yaml"])
    members = Counter(instance.group.lower() for instance in fabric.instances)
    if config["provider"]["type"] == "local":
        subprocess.run(
            ["bash", "-eu", "-c", config["setup_commands"][0].replace("~/raylay", str(tmp_path))],
            check=True, timeout=60,
        )  # fmt: skip
        given = re.search(r'REGIONS="([^"]*)"', (tmp_path / "settings").read_text())
        assert given is not None
        regions = dict(pair.split("=") for pair in given[1].split())
        assert sorted(regions) == sorted(config["provider"]["worker_ips"])
        hosts = Counter(regions.values())
    else:
        kinds = config["available_node_types"]
        hosts = Counter({n: kind["min_workers"] for n, kind in kinds.items() if "labels" in kind})
        assert config["max_workers"] == hosts.total()
    assert {name.lower(): count for name, count in hosts.items()} == members


def test_ssh_takes_no_host_for_another_one() -> None:
    for path in (DEPLOY / "node").iterdir():
        text = path.read_text() if path.is_file() else ""
        assert "StrictHostKeyChecking=no" not in text, path
        assert "UserKnownHostsFile=/dev/null" not in text, path


def served() -> set[str]:
    """The names of the metrics that an instance serves."""
    units = {"": "", "By": "_bytes", "s": "_seconds"}
    names = {
        f"raylay_{item.name}{units[item.unit]}{'_total' if item.counter else ''}"
        for items in (
            metrics._OF_INSTANCE,
            *(items for _, _, items in metrics._OF_EACH),
        )
        for item in items
    }
    return names | {"raylay_commit_latency_seconds_bucket", "raylay_build_info"}


def expressions() -> list[str]:
    board = json.loads((TELEMETRY / "grafana" / "dashboards" / "raylay.json").read_text())
    rules = yaml.safe_load((TELEMETRY / "alerts.yml").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


@pytest.mark.covers("Deployment", "cloud files, manifests")
def test_dashboard_and_alerts_name_metrics_that_there_are() -> None:
    named = {name for text in expressions() for name in re.findall(r"raylay_\w+", text)}
    assert named <= served(), named - served()
    # And the dashboard shows every one, so that a new metric is not forgotten.
    assert served() - named <= {"raylay_commits_total", "raylay_duplicates_skipped_total"}


def test_the_board_reads_the_source_that_is_provisioned() -> None:
    board = json.loads((TELEMETRY / "grafana" / "dashboards" / "raylay.json").read_text())
    provisioning = TELEMETRY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "raylay.yaml").read_text())[
        "datasources"
    ]
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["uid"]}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(letters)) == len(letters), panel["title"]


def test_dashboards_are_copied_to_where_grafana_is_told_to_look() -> None:
    provider = TELEMETRY / "grafana" / "provisioning" / "dashboards" / "raylay.yaml"
    (found,) = yaml.safe_load(provider.read_text())["providers"]
    copied = f"deploy/telemetry/grafana/dashboards/*.json {found['options']['path']}/"
    assert copied in (DEPLOY / "README.md").read_text()


def test_the_collectors_pipelines_use_what_is_declared() -> None:
    collector = yaml.safe_load((TELEMETRY / "collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= set(collector[kind])


@pytest.mark.skipif(not shutil.which("promtool"), reason="no Prometheus here")
def test_prometheus_takes_its_files() -> None:
    for kind, name in (("config", "prometheus.yml"), ("rules", "alerts.yml")):
        done = subprocess.run(
            ["promtool", "check", kind, name],
            cwd=TELEMETRY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prometheus that has scraped an instance's metrics and read the alerts; its address."""
    pytest.importorskip("opentelemetry.exporter.prometheus")
    if not shutil.which("prometheus"):
        pytest.skip("no Prometheus here")
    directory = tmp_path_factory.mktemp("prometheus")
    numbers: dict[str, object] = dict.fromkeys(metrics.KEYS, 7)
    for key in ("journal_bytes", "disk_free_bytes", "disk_bytes"):
        del numbers[key]
    numbers["places"] = {"pid": os.getpid(), "journal_directory": str(directory)}
    latency = metrics.LatencyHistogram()
    latency.record(2_000_000)
    numbers["commit_latency"] = latency
    for key, _, items in metrics._OF_EACH:
        numbers[key] = {"London": {item.key: 1 for item in items}}
    served = metrics.Metrics("Chicago-1", lambda: numbers)
    taken: set[int] = set()
    ports = (free_port(taken), free_port(taken))
    served.start(ports[0])
    config = read("deploy/telemetry/prometheus.yml")
    config["global"]["scrape_interval"] = "1s"
    config["rule_files"] = [str(TELEMETRY / "alerts.yml")]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{ports[0]}"]}]
    del config["scrape_configs"][1:]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{ports[1]}"
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        deadline_s = time.monotonic() + 120
        while not ask(address, 'count_over_time(up{job="raylay"}[1m]) > 3'):
            assert process.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline_s, (directory / "log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)
        served.stop()


def ask(address: str, expression: str) -> list[Any]:
    """What Prometheus answers; nothing while it does not."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=30) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it has just been started
            return []
        raise AssertionError(f"{expression}: {error.read().decode()}") from None
    except OSError:
        return []


def test_every_panel_shows_something_of_a_real_instance(prometheus: str) -> None:
    board = json.loads((TELEMETRY / "grafana" / "dashboards" / "raylay.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            found = ask(prometheus, target["expr"])
            assert found, target["expr"]
            for name in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert name in found[0]["metric"], (target["expr"], found[0]["metric"])


def test_alerts_are_read_and_ask_for_what_there_is(prometheus: str) -> None:
    with urllib.request.urlopen(f"http://{prometheus}/api/v1/rules", timeout=30) as answer:
        (group,) = json.load(answer)["data"]["groups"]
    for rule in group["rules"]:
        assert rule["health"] != "err", rule
        for name in re.findall(r"raylay_\w+", rule["query"]):
            assert ask(prometheus, name), name
    assert ask(prometheus, 'up{job="raylay"}')
