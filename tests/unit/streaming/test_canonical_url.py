"""A static member that comes back on another port keeps the identity that the assignor compares."""

from dataclasses import replace
from pathlib import Path

from qim_streams.streaming.app import build_app
from qim_streams.streaming.spec import AppSpec, SourceSpec

SPEC = AppSpec(
    role="some-role",
    brokers="127.0.0.1:1",
    sources=(SourceSpec("some.topic", 4),),
    datadir=Path("/nowhere"),
    instance_id="some-role-node-1-0",
)


def test_the_url_of_a_static_member_does_not_depend_on_its_web_port() -> None:
    urls = {str(build_app(replace(SPEC, web_port=port)).conf.canonical_url) for port in (6066, 7077)}
    assert len(urls) == 1


def test_two_workers_have_different_urls() -> None:
    apps = [build_app(replace(SPEC, instance_id=f"some-role-node-1-{slot}")) for slot in (0, 1)]
    assert len({str(app.conf.canonical_url) for app in apps}) == 2
