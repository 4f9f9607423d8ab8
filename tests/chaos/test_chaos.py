"""Whatever breaks, the router's picture becomes right again, and until then it says that it is not."""

import asyncio
import random
from pathlib import Path

import pytest

from chaos.fleet import Fleet
from chaos.rounds import Round, run_round

pytestmark = pytest.mark.integration

ROUNDS = 10


async def rounds(folder: Path, seeds: range) -> list[Round]:
    async with Fleet(folder, random.Random(seeds.start)) as fleet:
        return [await run_round(fleet, seed) for seed in seeds]


@pytest.mark.timeout(600)
def test_every_picture_becomes_right_again(tmp_path: Path) -> None:
    done = asyncio.run(rounds(tmp_path, range(ROUNDS)))
    failed = [one for one in done if one.failures]
    assert not failed, failed[0]
