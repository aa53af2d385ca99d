"""Which cluster we talk to, by the files that people have."""

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.drivers.kubernetes import api as client
from holdfast.drivers.kubernetes.api import opened
from holdfast.drivers.kubernetes.config import connect
from holdfast.errors import Error
from tests.drivers.kubernetes.cluster.fake import cluster


def kubeconfig(
    path: Path, name: str, *, user: Any = None, server: str = "http://127.0.0.1:1", **more: Any
) -> Path:
    """A file with one context, which is the current one unless `current` says otherwise."""
    context = {"cluster": name, "user": name, "namespace": f"of-{name}"}
    said = {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": user or {"token": name}}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
        **more,
    }
    path.write_text(yaml.safe_dump(said))
    return path


def use(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, paths)))


def test_the_context_gives_the_server_and_the_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, kubeconfig(tmp_path / "a", "a"))
    found = connect()
    assert (found.name, found.namespace) == ("a", "of-a")
    assert str(found.client.base_url) == "http://127.0.0.1:1"


def test_of_several_files_the_first_counts_and_the_others_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kubeconfig(tmp_path / "a", "a")
    second = kubeconfig(tmp_path / "b", "b")
    use(monkeypatch, first, tmp_path / "missing", second)
    assert connect().name == "a"
    assert connect("b").namespace == "of-b"


def test_an_unknown_context_is_told_with_those_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, kubeconfig(tmp_path / "a", "a"), kubeconfig(tmp_path / "b", "b"))
    with pytest.raises(Error) as caught:
        connect("c")
    assert caught.value.slug == "context-unknown"
    assert "a, b" in caught.value.why


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [", "clusters: []\ncontexts: []\n", "current-context: a\n"]
)
def test_a_file_that_is_no_kubeconfig_is_one_clear_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    use(monkeypatch, path)
    with pytest.raises(Error) as caught:
        connect()
    assert caught.value.slug in ("kubeconfig-unusable", "context-unknown")


SECTIONS = ("contexts", "clusters", "users")
SHAPES: tuple[Any, ...] = ([1], 1, "x", [None], [{}], [[]], {"name": "a"}, True, [{"name": 7}])


def _misshapen() -> list[dict[str, Any]]:
    """What overrides a part of a kubeconfig that is sound without it."""
    users: list[Any] = [1, {"exec": 1}, {"exec": {"apiVersion": 1, "command": "x"}}]
    users += [{"tokenFile": 5}, {"as": [1]}, {"as-groups": "x"}, {"as-user-extra": {"x": "y"}}]
    clusters: list[Any] = [1, None, {"certificate-authority": 5}, {"proxy-url": 1}]
    clusters += [{"server": f"https://127.0.0.1:{port}"} for port in (0, 99999)]
    clusters += [{"server": "http://127.0.0.1:1", "proxy-url": "http://127.0.0.1:99999"}]
    return [
        *({section: shape} for section in SECTIONS for shape in SHAPES),
        *({"current-context": shape} for shape in (["a"], {"a": "b"}, 5)),
        *({"contexts": [{"name": "a", "context": one}]} for one in (1, None, {"cluster": 5})),
        {"contexts": [{"name": 7, "context": {"cluster": "a"}}], "current-context": "a"},
        *({"users": [{"name": "a", "user": one}]} for one in users),
        *({"clusters": [{"name": "a", "cluster": one}]} for one in clusters),
    ]


@pytest.mark.parametrize("more", _misshapen(), ids=json.dumps)
def test_a_kubeconfig_of_another_shape_is_one_clear_error(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, kubeconfig(tmp_path / "a", "a", **more))
    with pytest.raises(Error) as caught:
        connect()
    assert caught.value.slug == "kubeconfig-unusable"
    assert caught.value.why


@pytest.mark.parametrize("text", ["[" * 500, '!!int ""', "!!timestamp x", "{1: 2, [a]: b}"])
def test_yaml_that_the_parser_chokes_on_is_one_clear_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    path.write_text(f"current-context: a\ncontexts: {text}\n")
    use(monkeypatch, path)
    with pytest.raises(Error) as caught:
        connect()
    assert caught.value.slug == "kubeconfig-unusable"


def test_no_file_at_all_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path / "nowhere")
    with pytest.raises(Error, match="kubeconfig") as caught:
        connect()
    assert "nowhere does not exist" in caught.value.why


def test_a_certificate_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    use(monkeypatch, kubeconfig(tmp_path / "a", "a", user=user))
    with pytest.raises(Error) as caught:
        connect()
    assert caught.value.slug == "kubeconfig-unusable"


def _plugin(tmp_path: Path, body: str, version: str) -> dict[str, Any]:
    """A credential plugin, which is any program."""
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": f"client.authentication.k8s.io/{version}", "command": str(path)}}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plugin_gives_the_token(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    answer = json.dumps({"status": {"token": "admin"}})
    body = f"echo \"$KUBERNETES_EXEC_INFO\" > {told}\necho '{answer}'"

    async def whole() -> None:
        async with cluster(machines=0) as it:
            user = _plugin(tmp_path, body, version)
            use(monkeypatch, kubeconfig(tmp_path / "a", "a", user=user, server=it.url))
            api = await opened()
            assert api.namespace == "of-a"
            await api.close()

    asyncio.run(whole())
    assert json.loads(told.read_text())["apiVersion"].endswith(version)


CERTIFICATE = json.dumps({"status": {"clientCertificateData": "c", "clientKeyData": "k"}})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("echo no >&2; exit 1", "no"),
        ("echo '{}'", "returned no status"),
        ("echo nonsense", "no credentials"),
        (f"echo '{CERTIFICATE}'", "returned no token (plugins that return client certificates"),
    ],
)
def test_a_plugin_that_fails_is_told(
    body: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, kubeconfig(tmp_path / "a", "a", user=_plugin(tmp_path, body, "v1")))
    with pytest.raises(Error) as caught:
        asyncio.run(_opened())
    assert caught.value.slug == "kubeconfig-unusable" and told in (caught.value.why or "")


def test_a_token_that_the_server_does_not_take_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whole() -> None:
        async with cluster(machines=0) as it:
            use(monkeypatch, kubeconfig(tmp_path / "a", "a", server=it.url))
            await _opened()

    with pytest.raises(Error, match="cannot be used"):
        asyncio.run(whole())


def test_a_server_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.001)
    use(monkeypatch, kubeconfig(tmp_path / "a", "a"))
    with pytest.raises(Error) as caught:
        asyncio.run(_opened())
    assert caught.value.slug == "cluster-unreachable"
    assert "http://127.0.0.1:1" in caught.value.why


async def _opened() -> None:
    await (await opened()).close()
