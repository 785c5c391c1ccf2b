"""The examples and the code of the quick start, run as they stand.

Most are forked from a process that has loaded torch: to load it once more for each would take most of their time. Two
run as a person runs them, since what they start loads torch itself.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from multiworld.lab.injector import proven
from multiworld.lab.workers import WorkerPool
from tests.multiworld.faults import programs
from tests.multiworld.faults.programs import ROOT, Program, documented_commands, started
from tests.multiworld.faults.scene import DEATH
from tests.multiworld.faults.settings import SETTINGS, Setting
from tests.multiworld.free_port import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # every process imports torch, on a busy machine for minutes

DIED = f"({'|'.join(sorted(DEATH - {'reported'}))})"


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Setting:
    """Make the setting of the programs; skips with its reason where there is nothing of the kind."""
    return Setting.of(request.param, tmp_path)


def _said(program: Program, *lines: str) -> str:
    assert program.end() == 0, str(program)
    for line in lines:
        assert re.search(line, str(program)), str(program)
    assert "Traceback" not in str(program)
    return str(program)


def test_the_native_leader(pool: WorkerPool) -> None:
    with started([["examples/leader_native.py"]], {}, pool=pool) as (program,):
        lost = f"left: rank 1 is lost, noticed by {DIED} after"
        _said(program, lost, "right: 300 requests", "back as generation 2", "done")


def test_the_replicated_model(pool: WorkerPool) -> None:
    """The plot has a bar of each quarter of a second, and the others were served while one replica was lost."""
    with started([["examples/replicated_model.py"]], {}, pool=pool) as (program,):
        said = _said(program, "replica-1 is lost: PeerLost", "replica-1 is back in generation 2")
        rates = {float(at): float(rate) for at, rate in re.findall(r"^ *([\d.]+) s  #* +(\d+)/s", said, re.MULTILINE)}
        assert list(rates) == [number / 4 for number in range(14)]
        assert sum(rates[at] for at in (1.25, 1.5, 1.75)) > 0


def test_the_elastic_group(pool: WorkerPool) -> None:
    """The command of the docstring: newcomers may come in together, or one after the other."""
    (command,) = documented_commands("examples/elastic_group.py")
    with started([command], {}, pool=pool) as (program,):
        _said(program, "rank 1 was killed", r"generation 2: old ranks \[0, 2, 3\]", "newcomer: rank 4 of 5")


def test_the_leader_of_pymultiworld() -> None:
    """It waits until its workers have loaded torch, so it may run as a person runs it."""
    with started([["examples/leader_pymultiworld.py"]], {}) as (program,):
        _said(program, "left: broken, noticed after", "right: 300 requests answered", "done")


def test_manual_several_worlds(setting: Setting, pool: WorkerPool) -> None:
    """The commands of the docstring: a worker is killed, and its world alone ends."""
    commands = [setting.applied(command) for command in documented_commands("examples/multiworld_asyncio.py")]
    own = {"pool": pool} if setting.backend == "gloo" else {"apart": setting.apart}
    with started(commands, setting.environment, setting.python, **own) as (leader, first, second):
        leader.until(r"world1: received 3 ", anywhere=True)
        leader.until(r"world2: received 3 ", anywhere=True)
        os.kill(int(first.until(r"world1: joined as rank 1, process (\d+)")[1]), signal.SIGKILL)
        leader.until(r"world1: broken: ranks \(1,\) are lost")
        last = int(leader.until(r"world2: received (\d+)")[1])
        assert int(leader.until(r"world2: received (\d+)")[1]) == last + 1
        os.kill(int(second.until(r"world2: joined as rank 1, process (\d+)")[1]), signal.SIGKILL)
        leader.until(r"world2: broken: ranks \(1,\) are lost")
        leader.until("no world is left")
        assert leader.end() == 0, str(leader)


def test_manual_says_what_is_wrong_with_worldinfo(pool: WorkerPool) -> None:
    with started([["examples/multiworld_asyncio.py", "--worldinfo", "1"]], {}, pool=pool) as (program,):
        program.until("'1' is not W,R: the number of a world and a rank, e.g. 1,0")
        assert program.end() == 2


def test_manual_single_world_on_one_host(pool: WorkerPool) -> None:
    """Gloo reports the dead rank to the one that receives from it; the world cannot be repaired."""
    alone, *_ = documented_commands("examples/single_world.py")
    with started([alone], {"MASTER_PORT": str(free_port())}, pool=pool) as (program,):
        killed = int(program.until(r"rank 1: process (\d+)")[1])
        program.until("rank 0: received 2 from rank 2")
        os.kill(killed, signal.SIGKILL)
        program.until("rank 0: no more from rank 1: RuntimeError")
        program.until("rank 0: received .* from rank 2")
        program.until("rank 1: ended, killed by SIGKILL", anywhere=True)


def test_manual_single_world_with_one_command_per_rank(pool: WorkerPool) -> None:
    _, *commands = documented_commands("examples/single_world.py")
    commands = [command for command in commands if "gloo" in command]
    with started(commands, {"MASTER_PORT": str(free_port())}, pool=pool) as (receiver, *senders):
        receiver.until("rank 0: received 2 from rank 1")
        receiver.until("rank 0: received 2 from rank 2")
        for sender in senders:
            sender.kill()
        receiver.until("rank 0: nobody is left to receive from")
        assert receiver.end() == 0, str(receiver)


@pytest.mark.parametrize("setting", ["torch-nccl (simulated)"], indirect=True)
def test_manual_single_world_ends_with_its_dead_rank(setting: Setting) -> None:
    """Without the flag, torch ends rank 0, stock and patched alike."""
    (command,) = _on_nccl(cleans_up=False)
    with started([command], _own_port(setting), setting.python) as (program,):
        _kill_rank_1(program, setting)
        program.until("rank 0: ended, killed by SIGABRT")
        assert program.end() == 1, str(program)


@pytest.mark.parametrize("setting", ["torch-nccl (simulated)"], indirect=True)
def test_manual_single_world_cleans_up(setting: Setting) -> None:
    """With it, rank 0 lives: on stock torch a receive ends without data and error, on patched torch none does.

    Before 2.6 one may do so on patched torch, too: ``wait()`` returns before the failure, whatever its deadline.
    """
    if setting.is_patched and setting.waits_at_a_deadline:
        said = _survived(setting)
        assert not _wrong(said), said
        assert len(re.findall(r"rank 0: no more from rank [12]: DistBackendError", said)) == 2, said
    else:  # a race in torch; if it is never lost, torch has become better than its record: correct the docstring
        assert any(_wrong(_survived(setting)) for _ in range(4))


def _survived(setting: Setting) -> str:
    """Run the program that loses rank 1 and goes on; return its output."""
    (command,) = _on_nccl(cleans_up=True)
    with started([command], _own_port(setting), setting.python) as (program,):
        _kill_rank_1(program, setting)
        program.until("rank 0: nobody is left to receive from; this process goes on")
        program.until("rank 0: ended, exit status 0")
        assert program.end() == 0, str(program)
    return str(program)


def _wrong(said: str) -> list[str]:
    return re.findall("rank 0: WRONG: the receive from rank .* ended without data and without error", said)


def _on_nccl(*, cleans_up: bool) -> list[list[str]]:
    flag = "--nccl_async_error_handle_cleanup"
    found = [command for command in documented_commands("examples/single_world.py") if "nccl" in command]
    return [command for command in found if (flag in command) is cleans_up]


def _own_port(setting: Setting) -> dict[str, str]:
    return {**setting.environment, "MASTER_PORT": str(free_port())}


def _kill_rank_1(program: Program, setting: Setting) -> None:
    """While rank 0 waits for it on the device: a receive that is asked for later is refused, and nothing breaks."""
    from gpuless.control import Action, Remote  # needs the tooling's libraries, as the setting does

    receiver, sender = (int(program.until(rf"rank {rank}: process (\d+)", anywhere=True)[1]) for rank in (0, 1))
    program.until("rank 0: received 2 from rank 2")
    control = Path(setting.environment["GPULESS_CONTROL"])
    with Remote(control, receiver) as ours, Remote(control, sender) as theirs:
        theirs.inject("ncclSend", Action.HOLD)

        def waits() -> str | None:
            sent = theirs.counters()
            awaited = 2 * sent.launched - 1  # one of each rank in turn; the last of rank 1 is held
            held = sent.sites["ncclSend"].fired and ours.counters().launched == awaited
            return "rank 0 has launched its receive" if held else None

        proven(waits, "that rank 0 waits for rank 1")
        os.kill(sender, signal.SIGKILL)


def _pair(page: str, tmp_path: Path) -> Path:
    """Write the program of a page to a folder, with a free port; return the folder."""
    program = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[0]
    assert "29500" in program
    (tmp_path / "pair.py").write_text(program.replace("29500", str(free_port())))
    return tmp_path


def test_readme(tmp_path: Path, pool: WorkerPool) -> None:
    """The second rank is killed and started again."""
    program = str(_pair("README.md", tmp_path) / "pair.py")
    first, second = [program, "0"], [program, "1"]
    with started([first, second], {}, pool=pool) as (survivor, victim):
        survivor.until("generation 1: the sum is 2")
        victim.kill()
        survivor.until("rank 1 is lost")
        with started([second], {}, pool=pool) as (replacement,):
            replacement.until("generation 2: the sum is 2")
            survivor.until("generation 2: the sum is 2")


def test_quick_start(tmp_path: Path, pool: WorkerPool) -> None:
    folder = _pair("docs/quickstart.md", tmp_path)
    with started([["pair.py", str(rank)] for rank in range(2)], {}, cwd=folder, pool=pool) as both:
        said = [_said(program) for program in both]
    assert "tensor([0., 1., 2., 3.])" in said[1]


def test_quick_start_under_torchrun(tmp_path: Path) -> None:
    folder = _pair("docs/quickstart.md", tmp_path)
    program = (folder / "pair.py").read_text()
    call = re.search(r'mw\.join\("pair".*?\)', program)
    assert call is not None
    program = program.replace(call.group(), 'mw.join("pair")').replace("int(sys.argv[1])", 'int(os.environ["RANK"])')
    (folder / "pair.py").write_text("import os\n" + program)
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    with started([[*run, "--master-port", str(free_port()), "pair.py"]], {}, cwd=folder) as (program,):
        text = _said(program)
    assert "tensor([0., 1., 2., 3.])" in text


def test_a_program_that_works_is_waited_for_and_one_that_hangs_shows_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock alone cannot tell one that loads torch on a busy machine from one that does not end."""
    monkeypatch.setattr(programs, "SECONDS", 4.0)
    monkeypatch.setattr(programs, "WORKED", 0.02)
    works = "import time\nfor _ in range(9): time.sleep(1); sum(range(3_000_000))\nprint('said', flush=True)"
    hangs = "import time\nprint('done', flush=True)\ndef waits_for_nothing(): time.sleep(600)\nwaits_for_nothing()"
    with started([["-c", works], ["-c", hangs]], {}) as (busy, idle):
        busy.until("said")
        assert busy.end() == 0
        with pytest.raises(AssertionError, match=r"(?s)silent and idle.*done.*waits_for_nothing"):
            idle.end()
