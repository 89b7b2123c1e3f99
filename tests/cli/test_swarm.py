"""Wrong values of `dipaco swarm`: a sentence and exit code 2, before anything is begun."""

import socket
import time

import own_path_loss
import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from dipaco.cli.main import main
from dipaco.runs.opening import create_or_open, reading
from dipaco.runs.rules import Rules, record_of
from dipaco.swarm.errors import TlsRefused
from dipaco.swarm.network.credentials import save_credential
from dipaco.swarm.roles import session
from tests.support.swarm_rig import AUTHORITY
from tests.support.tiny_run import TOY, TOY_FILE

JOIN = ("join", "tcp://127.0.0.1:1", "--token", "X")
START = ("start", "configs/quickstart.py", "--run", "RUN", "--path", "0")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*START, "--name", "../../evil"), "`../../evil` is not a valid name"),
        ((*START, "--name", ""), "`` is not a valid name"),
        ((*START, "--lease-seconds", "nan"), "`--lease-seconds` is nan. Expected 1 to 86400"),
        ((*START, "--lease-seconds", "-1"), "`--lease-seconds` is -1.0."),
        ((*START, "--save-seconds", "inf"), "`--save-seconds` is inf."),
        ((*START, "--save-seconds", "0"), "`--save-seconds` is 0.0."),
        (
            (*START, "--set", "inner.freeze_absent_tokens=true"),
            "`inner.freeze_absent_tokens` is on",
        ),
        ((*START, "--set", "outer.delay=1"), "`outer.delay` is 1"),
        ((*START, "--block-rows", "0"), "`--block-rows` is 0. Expected 1 to "),
        ((*START, "--block-rows", "65000"), "`--block-rows` is 65000. Expected 1 to "),
        ((*START, "--listen", "tls://host"), "`tls://host` is not an address of a swarm"),
        ((*START, "--listen", "/ip4/1.2.3.4/tcp/99999"), "`/ip4/1.2.3.4/tcp/99999` is not an"),
        ((*START, "--listen", "/ip4/1.2.3.4"), "`/ip4/1.2.3.4` is not an address of a swarm"),
        ((*START, "--announce", "a/b"), "`--announce` is 'a/b'. Expected the name"),
        ((*START, "--announce", "a.b:4710"), "`--announce` is 'a.b:4710'. Expected the name"),
        ((*START, "--announce", ""), "`--announce` is ''. Expected the name"),
        (
            (*START, "--listen", "tcp://127.0.0.1:0", "--announce", "a.b"),
            "`--announce` is 'a.b'. Expected that it is left out, or `--listen tls://HOST:PORT`",
        ),
        (("token", "--run", "RUN", "--name", "ANA"), "dipaco swarm start CONFIG --run"),
        (("revoke", "ANA", "--run", "RUN"), "dipaco swarm start CONFIG --run"),
        (("join", "tcp://127.0.0.1:1", "--token", "X", "--megabits", "0"), "`--megabits` is 0.0."),
        (("aux", "tcp://127.0.0.1:1", "--token", "X", "--megabits", "nan"), "`--megabits` is nan."),
        ((*JOIN, "--threads", "0"), "`--threads` is 0. Expected 1 to "),
        ((*JOIN, "--threads", "99999"), "`--threads` is 99999. Expected 1 to "),
        ((*JOIN, "--between", "night"), "`--between` is 'night'. Expected two different times"),
        ((*JOIN, "--between", "22:00-24:01"), "`--between` is '22:00-24:01'."),
        ((*JOIN, "--between", "07:60-22:00"), "`--between` is '07:60-22:00'."),
        ((*JOIN, "--between", "07:00-07:00"), "`--between` is '07:00-07:00'."),
        (JOIN, "X cannot be read"),
        (("watch", JOIN[1], "--token", __file__), "holds no credential that `dipaco swarm token`"),
    ],
)
def test_wrong_values_are_refused_and_nothing_is_begun(words, says, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    assert main(["swarm", *[str(folder) if word == "RUN" else word for word in words]]) == 2
    assert says in capsys.readouterr().err
    assert not folder.exists()


LIBP2P = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWQ8JRSB9iFSD5vJFdN8nRzmVXN2KQJhGUBuyGZmGMSgWB"


@pytest.mark.parametrize(
    "address",
    ["foo", "tcp://host", "tls://127.0.0.1:1", "tcp://:1", "tcp://h:0", f"{LIBP2P}0", LIBP2P[4:]],
)
@pytest.mark.parametrize("verb", ["join", "watch"])
def test_a_wrong_address_is_refused_before_anything_is_waited_for(verb, address, tmp_path, capsys):
    token = tmp_path / "a.pass"
    save_credential(AUTHORITY.issue("ana", "volunteer", time.time(), 1.0), token)
    night = () if verb == "watch" else ("--between", "00:00-00:01")
    assert main(["swarm", verb, address, "--token", str(token), *night]) == 2
    assert "is not an address of a swarm" in capsys.readouterr().err


def test_to_watch_by_a_credential_of_another_run_gives_the_sentence_that_join_gives(
    tmp_path, monkeypatch, capsys
):
    token, address = tmp_path / "a.pass", "tls://127.0.0.1:1/" + "0" * 32
    save_credential(AUTHORITY.issue("ana", "volunteer", time.time(), 1.0), token)
    refused = TlsRefused(address=address, problem="it is not of the run")

    async def ask(wire, address):
        raise refused

    monkeypatch.setattr(session, "ask_about_run", ask)
    assert main(["swarm", "watch", address, "--token", str(token)]) == 2
    assert capsys.readouterr().err.strip() == f"TlsRefused: {refused}"


def test_an_expired_credential_is_refused_before_its_hours_are_waited_for(tmp_path, capsys):
    token = tmp_path / "a.pass"
    save_credential(AUTHORITY.issue("ana", "volunteer", time.time() - 200_000, 1.0), token)
    words = ["swarm", "join", "tcp://127.0.0.1:1", "--token", str(token)]
    assert main([*words, "--between", "00:00-00:01"]) == 2
    assert "it has expired, on 20" in capsys.readouterr().err


def test_a_run_with_a_path_loss_of_its_own_is_not_trained_by_volunteers(tmp_path, capsys):
    recorded = record_of(Rules(path_loss=own_path_loss.plain))
    create_or_open(tmp_path, TOY, rules=recorded)[0].ledger.close()
    words = ["swarm", "start", str(TOY_FILE), "--run", str(tmp_path), "--path", "0"]
    assert main(words) == 2
    assert "the path loss is `own_path_loss:plain`, and peers" in capsys.readouterr().err


def test_tasks_that_failed_are_tried_again_as_by_train(tmp_path, capsys):
    opened, _ = create_or_open(tmp_path, TOY, rules=record_of(Rules(path_loss=own_path_loss.plain)))
    claim = opened.ledger.queue.claim("ana")
    assert opened.ledger.failures.fail(claim, "no text", is_lasting=True)
    opened.ledger.close()
    # It goes no further than the refusal of the run's path loss.
    assert main(["swarm", "start", str(TOY_FILE), "--run", str(tmp_path), "--path", "0"]) == 2
    assert f"{claim.task} had failed and is tried again" in capsys.readouterr().out


@pytest.mark.parametrize("days", ["inf", "nan", "0", "-1", "1e9"])
def test_a_credential_of_a_wrong_validity_is_not_made(days, tiny, tmp_path, capsys):
    words = ["swarm", "token", "--run", str(tiny.folder), "--name", "ANA", "--days", days]
    assert main([*words, "--out", str(tmp_path / "a.pass")]) == 2
    error = capsys.readouterr().err
    assert f"valid for {float(days)} days" in error
    assert "Give more than 0 and at most 36,500" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../ANA", "-x", "A\x1b[2J", "n" * 101, "é" * 51])
def test_a_credential_for_a_wrong_name_is_not_made(name, tiny, tmp_path, capsys):
    words = ["swarm", "token", "--run", str(tiny.folder), f"--name={name}"]
    assert main([*words, "--out", str(tmp_path / "a.pass")]) == 2
    assert "is not a valid name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_credential_that_cannot_be_written_is_an_error_and_on_no_list(tiny, tmp_path, capsys):
    words = ["swarm", "token", "--run", str(tiny.folder), "--name", "ANA"]
    assert main([*words, "--out", str(tmp_path / "nowhere" / "a.pass")]) == 4
    error = capsys.readouterr().err
    assert "NotWritable" in error
    assert "a.pass" in error
    with reading(tiny.folder) as opened:
        assert not opened.ledger.swarms.credentials()


@pytest.mark.parametrize("out", [None, "diary.txt"])
def test_a_credential_replaces_no_file_and_only_its_owner_can_read_it(
    out, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    create_or_open(folder, TOY)[0].ledger.close()
    words = ["swarm", "token", "--run", str(folder), "--name", "ANA"]
    kept = tmp_path / "ANA.pass"
    if out is None:
        assert main(words) == 0
        assert kept.stat().st_mode & 0o777 == 0o600
    else:
        words += ["--out", out]
        kept = tmp_path / out
        kept.write_bytes(b"dear diary")
    before = kept.read_bytes()
    with reading(folder) as opened:
        issued = opened.ledger.swarms.credentials()
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"{kept.name} is there already" in error
    assert "--out FILE" in error
    assert kept.read_bytes() == before
    with reading(folder) as opened:
        assert opened.ledger.swarms.credentials() == issued


@pytest.mark.parametrize(
    "listen", ["tls://127.0.0.1:{}", "tcp://127.0.0.1:{}", "/ip4/127.0.0.1/tcp/{}"]
)
def test_a_port_in_use_and_a_wrong_one_are_errors(listen):
    import asyncio

    from dipaco.errors import CannotListen
    from dipaco.swarm.errors import BadAddress
    from dipaco.swarm.network.credentials import Authority
    from dipaco.swarm.network.transport import start_transport

    if listen.startswith("/"):
        pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

    async def serve(reader, writer): ...

    credential = Authority(Authority.new_key(), "run").issue("ana", "volunteer", time.time(), 1.0)
    with socket.create_server(("127.0.0.1", 0)) as used:
        where = listen.format(used.getsockname()[1])
        with pytest.raises(CannotListen, match="another `--listen`"):
            asyncio.run(start_transport(where, serve, credential=credential))
    with pytest.raises(BadAddress, match="99999"):
        asyncio.run(start_transport(listen.format(99999), serve, credential=credential))
