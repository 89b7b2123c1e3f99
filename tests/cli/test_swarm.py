"""Wrong values of `dipaco swarm`: a sentence and exit code 2, before anything is begun."""

import time
from unittest.mock import Mock

import own_path_loss
import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from dipaco.cli.main import main
from dipaco.runs.opening import create_or_open
from dipaco.runs.rules import Rules, record_of
from dipaco.swarm.errors import TlsRefused
from dipaco.swarm.network.credentials import keys_folder, load_credential, save_credential
from dipaco.swarm.network.messages import RUN_FAILED
from dipaco.swarm.roles import session
from dipaco.workers.errors import TaskFailed
from tests.support.swarm_rig import AUTHORITY
from tests.support.tiny_run import TOY, TOY_FILE, toy_run  # noqa: F401

JOIN = ("join", "127.0.0.1:1", "--token", "X")
START = ("start", "configs/quickstart.py", "--run", "RUN", "--path", "0")


WRONG = [
    ((*START, "--name", "../../evil"), "`../../evil` is not a valid name"),
    ((*START, "--lease-seconds", "nan"), "`--lease-seconds` is nan. Expected 1 to 86400"),
    ((*START, "--save-seconds", "0"), "`--save-seconds` is 0.0."),
    ((*START, "--set", "inner.freeze_absent_tokens=true"), "`inner.freeze_absent_tokens` is on"),
    ((*START, "--set", "outer.delay=1"), "`outer.delay` is 1"),
    ((*START, "--block-rows", "0"), "`--block-rows` is 0. Expected 1 to "),
    ((*START, "--block-rows", "65000"), "`--block-rows` is 65000. Expected 1 to "),
    ((*START, "--local-steps", "2"), "`--local-steps` is 2. Expected a divisor of the 5 steps"),
    ((*START, "--local-steps", "0"), "`--local-steps` is 0. Expected a divisor of the 5 steps"),
    ((*START, "--local-steps", "5", "--codec", "int8"), "does not bear `--codec int8`"),
    ((*START, "--listen", "host"), "`host` is not an address of a swarm"),
    ((*START, "--listen", "1.2.3.4:99999"), "`1.2.3.4:99999` is not an"),
    ((*START, "--announce", "a.b:4710"), "`--announce` is 'a.b:4710'. Expected the name"),
    (("token", "--run", "RUN", "--name", "ANA"), "dipaco swarm start CONFIG --run"),
    (("revoke", "ANA", "--run", "RUN"), "dipaco swarm start CONFIG --run"),
    ((*JOIN, "--megabits", "0"), "`--megabits` is 0.0."),
    ((*JOIN, "--megabits", "nan"), "`--megabits` is nan."),
    ((*JOIN, "--threads", "99999"), "`--threads` is 99999. Expected 1 to "),
    (JOIN, "X cannot be read"),
    (("watch", JOIN[1], "--token", __file__), "holds no credential that `dipaco swarm token`"),
]


def test_wrong_values_are_refused_and_nothing_is_begun(tmp_path, capsys):
    folder = tmp_path / "run"
    for words, says in WRONG:
        assert main(["swarm", *(str(folder) if word == "RUN" else word for word in words)]) == 2
        assert says in capsys.readouterr().err, words
        assert not folder.exists()


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "a.pass"
    save_credential(AUTHORITY.issue("ana", "volunteer", time.time(), 1.0), file)
    return str(file)


@pytest.mark.parametrize("verb", ["join", "watch"])
def test_a_wrong_address_is_refused_before_anything_is_waited_for(verb, token, capsys):
    for address in ("foo", ":1", "tcp://127.0.0.1:1", "h:0", "/ip4/127.0.0.1/tcp/1"):
        assert main(["swarm", verb, address, "--token", token]) == 2
        assert "is not an address of a swarm" in capsys.readouterr().err, address


def test_to_watch_by_a_credential_of_another_run_gives_the_sentence_that_join_gives(
    token, monkeypatch, capsys
):
    address = "127.0.0.1:1"
    refused = TlsRefused(address=address, problem="it is not of the run")

    async def ask(wire, address):
        raise refused

    monkeypatch.setattr(session, "ask_about_run", ask)
    assert main(["swarm", "watch", address, "--token", token]) == 2
    assert capsys.readouterr().err.strip() == f"TlsRefused: {refused}"


def test_a_run_with_a_path_loss_of_its_own_is_refused_after_what_had_failed_is_tried_again(
    tmp_path, capsys
):
    recorded = record_of(Rules(path_loss=own_path_loss.plain))
    opened, _ = create_or_open(tmp_path, TOY, rules=recorded)
    claim = opened.ledger.queue.claim("ana")
    assert opened.ledger.failures.fail(claim, "no text", is_lasting=True)
    opened.ledger.close()
    words = ["swarm", "start", str(TOY_FILE), "--run", str(tmp_path)]
    assert main(words) == 2
    assert "--path 0 to 3" in capsys.readouterr().err
    assert main([*words, "--path", "0"]) == 2
    said = capsys.readouterr()
    assert f"{claim.task} had failed and is tried again" in said.out
    assert "the path loss is `own_path_loss:plain`, and peers" in said.err


@pytest.fixture
def swarm(run, tmp_path, here):
    """`swarm("revoke", "ANA")`: the exit code of the verb on the run, and what it says."""

    def command(*words):
        ended = here("swarm", *words, "--run", tmp_path / "run")
        return ended.code, ended.out + ended.err

    return command


def test_credentials_are_made_and_revoked(run, swarm, tmp_path):
    file, credentials = tmp_path / "ana.pass", run.ledger.swarms.credentials
    code, said = swarm("token", "--name", "ANA", "--out", file)
    assert (code, file.exists()) == (0, True), said
    assert "ANA may take part until" in said
    assert [(one.name, one.is_revoked) for one in credentials()] == [("ANA", False)]
    code, said = swarm("revoke", "EVE")
    assert code == 2
    assert "credentials for: ANA" in said
    for _ in range(2):
        assert swarm("revoke", "ANA")[0] == 0
        assert [one.is_revoked for one in credentials()] == [True]


def test_a_key_elsewhere_makes_no_credential_and_a_backbones_can_be_brought(
    run, swarm, tmp_path, monkeypatch
):
    """Who reads the ledger has no key: neither the run's, nor one that could be one."""
    two, ana = tmp_path / "two.pass", tmp_path / "ana.pass"
    assert swarm("token", "--name", "two", "--backbone", "--out", two)[0] == 0
    (credential,) = run.ledger.swarms.credentials()
    assert (credential.name, credential.role) == ("backbone-two", "backbone")
    assert load_credential(two).certificate.serial == credential.serial
    (key,) = keys_folder().glob(f"{run.identity}.key")
    for file in (tmp_path / "run").rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert key.read_bytes() not in content, file
        assert bytes.fromhex(key.read_text()) not in content, file
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another person"))
    for words in (("token", "--name", "EVE", "--out", tmp_path / "eve.pass"), ("start", TOY_FILE)):
        code, said = swarm(*words, *(("--path", 0) if words[0] == "start" else ()))
        assert (code, "and only that one makes credentials" in said) == (2, True), said
    assert not (tmp_path / "another person").exists()
    save_credential(AUTHORITY.issue("ana", "volunteer", time.time(), 1.0), ana)
    code, said = swarm("start", TOY_FILE, "--path", 0, "--token", ana)
    assert (code, "is a volunteer's" in said) == (2, True), said


def test_a_run_that_fails_says_so_to_volunteers_before_its_backbone_is_gone(
    run, swarm, monkeypatch
):
    """They went on dialling for ten minutes."""
    backbone = Mock(address="127.0.0.1:1")
    failed = TaskFailed(task="train", times="3 times", worker="w", reason="a NaN.", others="")
    monkeypatch.setattr("dipaco.swarm.roles.backbone.Backbone", lambda *_, **__: backbone)
    monkeypatch.setattr("dipaco.workers.process.work", Mock(side_effect=failed))
    code, said = swarm("start", TOY_FILE, "--path", 0)
    assert (code, "The run cannot go on." in said) == (TaskFailed.exit_code, True), said
    backbone.close.assert_called_once_with(RUN_FAILED)


def test_the_name_of_a_backbone_is_neither_given_to_a_volunteer_nor_revoked(run, swarm, tmp_path):
    run.ledger.swarms.issue("serial", "backbone-0", "backbone", 2e9)
    code, said = swarm("revoke", "backbone-0")
    assert (code, "There is no credential for backbone-0" in said) == (2, True)
    assert [one.is_revoked for one in run.ledger.swarms.credentials()] == [False]
    out = tmp_path / "false.pass"
    code, said = swarm("token", "--name", "backbone-0", "--out", out)
    assert (code, out.exists(), "a volunteer's name" in said) == (2, False, True)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        *(
            ((f"--name={name}", "--out", "a.pass"), 2, ("is not a valid name",))
            for name in ("../ANA", "-x", "A\x1b[2J", "n" * 101, "é" * 51)
        ),
        *(
            (("--name", "ANA", "--days", days, "--out", "a.pass"), 2,
             (f"valid for {float(days)} days", "Give more than 0 and at most 36,500"))
            for days in ("inf", "nan", "0", "1e9")
        ),
        (("--name", "ANA", "--out", "nowhere/a.pass"), 4, ("NotWritable", "a.pass")),
    ],
)  # fmt: skip
def test_a_credential_that_is_wrong_or_cannot_be_written_is_not_made(
    run, swarm, words, code, says, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found, said = swarm("token", *words)
    assert found == code
    assert all(sentence in said for sentence in says), said
    assert not list(tmp_path.glob("*.pass"))
    assert not run.ledger.swarms.credentials()


@pytest.mark.parametrize("out", [None, "diary.txt"])
def test_a_credential_replaces_no_file_and_only_its_owner_can_read_it(
    out, run, swarm, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words, kept = ["token", "--name", "ANA"], tmp_path / (out or "ANA.pass")
    if out is None:
        assert swarm(*words)[0] == 0
        assert kept.stat().st_mode & 0o777 == 0o600
    else:
        words += ["--out", out]
        kept.write_bytes(b"dear diary")
    before, issued = kept.read_bytes(), run.ledger.swarms.credentials()
    code, said = swarm(*words)
    assert code == 2
    assert f"{kept.name} is there already" in said
    assert "--out FILE" in said
    assert kept.read_bytes() == before
    assert run.ledger.swarms.credentials() == issued
