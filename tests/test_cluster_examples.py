"""The files of examples/cluster: as far as they can be checked where no cluster is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aotc.cli.commands import commands

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[1] / "examples" / "cluster"


def _documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def _strings(value: Any) -> list[list[str]]:
    """Return all lists of strings in a document: its commands, among others."""
    if isinstance(value, dict):
        return [strings for child in value.values() for strings in _strings(child)]
    if isinstance(value, list):
        if value and all(isinstance(child, str) for child in value):
            return [value]
        return [strings for child in value for strings in _strings(child)]
    return []


def test_compose_has_a_scheduler_workers_and_a_store() -> None:
    (document,) = _documents("compose.yaml")
    assert set(document["services"]) == {"scheduler", "worker", "store"}
    for service in document["services"].values():
        assert set(service.get("depends_on", {})) <= set(document["services"])
    assert set(document["volumes"]) == {"store"}


def test_every_kubernetes_object_is_whole_and_selects_what_there_is() -> None:
    documents = _documents("kubernetes.yaml")
    assert [document["kind"] for document in documents] == [
        *("Service", "Deployment", "Deployment", "Job", "PersistentVolumeClaim")
    ]
    assert all(
        {"apiVersion", "kind", "metadata", "spec"} <= set(document) for document in documents
    )
    service, scheduler, worker, job, claim = documents
    for deployment in (scheduler, worker):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == scheduler["spec"]["template"]["metadata"]["labels"]
    for workload in (worker, job):
        pod = workload["spec"]["template"]["spec"]
        mounted = {m["name"] for c in pod["containers"] for m in c["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert f"{claim['metadata']['name']}" in str(job)


@pytest.mark.parametrize("name", ["compose.yaml", "kubernetes.yaml"])
def test_commands_are_those_that_there_are(name: str) -> None:
    """Options of `aotc` are known, and workers have one thread each and the scheduler's name."""
    argument_lists = [
        arguments for document in _documents(name) for arguments in _strings(document)
    ]
    workers = [arguments for arguments in argument_lists if arguments[:2] == ["dask", "worker"]]
    assert workers
    for command in workers:
        assert command[command.index("--nthreads") + 1] == "1"
        assert re.fullmatch(r"tcp://(aotc-)?scheduler:8786", command[2])
    for command in (arguments for arguments in argument_lists if arguments[:1] == ["aotc"]):
        options = {
            option for param in commands.commands[command[1]].params for option in param.opts
        }
        assert {word for word in command if word.startswith("--")} <= options


def test_the_image_has_what_scheduler_and_workers_need() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert "[dask,s3]" in text
