import asyncio
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the train set is not installed")

from verl.checkpoint_engine.base import CheckpointEngineRegistry  # noqa: E402

from trainer.verl_plugins.file_checkpoint import FileCheckpointEngine  # noqa: E402

ODD = [0.0, -0.0, 1e-45, float("inf"), float("-inf"), float("nan"), 0.1, -3.4e38]


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    wide = torch.randn(64, 8)
    return {
        "odd.values": torch.tensor(ODD),
        "half": torch.randn(33, 7).to(torch.bfloat16),
        "a.view": wide[::2].T,  # neither whole nor contiguous
        "tied": wide,
        "counter": torch.tensor(2**60),
        "nothing": torch.empty(0, 4),
    }


def engines(folder: Path, readers: int = 1) -> tuple[FileCheckpointEngine, list[FileCheckpointEngine]]:
    """As veRL joins them: the trainer's rank is the master, each policy worker reads."""
    writer = FileCheckpointEngine(1 << 20, is_master=True, folder=str(folder))
    others = [FileCheckpointEngine(1 << 20, folder=str(folder)) for _ in range(readers)]
    told = [engine.prepare() for engine in (writer, *others)]
    send, receive = FileCheckpointEngine.build_topology(1, readers, told)
    writer.init_process_group(key=send["key"][0])
    for number, other in enumerate(others):
        other.init_process_group(key=receive["key"][number])
    return writer, others


async def received(engine: FileCheckpointEngine) -> dict[str, Any]:
    return {name: tensor async for name, tensor in engine.receive_weights()}


def same_bits(one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8)) if one.ndim else one == other


def files(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def test_verl_knows_it_by_its_name() -> None:
    assert CheckpointEngineRegistry.get("openforge_file") is FileCheckpointEngine


async def test_every_reader_gets_every_tensor_to_the_bit(tmp_path: Path) -> None:
    writer, readers = engines(tmp_path, readers=2)
    sent = state()
    await writer.send_weights(iter(sent.items()))
    for reader in readers:
        got = await received(reader)
        assert list(got) == list(sent)
        assert all(same_bits(got[name], tensor) for name, tensor in sent.items())


async def test_a_reader_that_comes_first_waits_for_the_whole_file(tmp_path: Path) -> None:
    writer, [reader] = engines(tmp_path)
    reading = asyncio.create_task(received(reader))
    await asyncio.sleep(0)
    assert not reading.done()
    await writer.send_weights(iter(state().items()))
    assert list(await asyncio.wait_for(reading, 10)) == list(state())


async def test_what_is_sent_later_changes_nothing_that_was_sent(tmp_path: Path) -> None:
    writer, [reader] = engines(tmp_path)
    weights = torch.ones(4)
    await writer.send_weights([("w", weights)])
    weights.zero_()
    assert (await received(reader))["w"].tolist() == [1.0] * 4


async def test_another_sync_has_another_file_and_the_old_one_is_removed(tmp_path: Path) -> None:
    names = []
    for step in (1.0, 2.0):
        writer, [reader] = engines(tmp_path)
        await writer.send_weights([("w", torch.full((2,), step))])
        assert (await received(reader))["w"].tolist() == [step, step]
        names += files(tmp_path)
        reader.finalize()
        assert len(files(tmp_path)) == 1  # the reader leaves it to the writer
        writer.finalize()
        assert not files(tmp_path)
    assert len(set(names)) == 2


async def test_a_rank_that_is_not_the_master_takes_part_and_writes_nothing(tmp_path: Path) -> None:
    _, [other] = engines(tmp_path)
    taken = []

    def gathered() -> Any:
        for name, tensor in state().items():
            taken.append(name)
            yield name, tensor

    await other.send_weights(gathered())
    assert taken == list(state())
    assert not files(tmp_path)
