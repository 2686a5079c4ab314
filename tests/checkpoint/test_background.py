import threading

from t2tp.checkpoint.background import BackgroundWorker
from tests.patience import PATIENCE


def test_a_second_task_waits_for_the_first():
    done, go = [], threading.Event()
    background = BackgroundWorker("test")
    background.start(lambda: (go.wait(PATIENCE), done.append(1)))
    assert background.is_busy
    background.check()  # returns at once
    threading.Timer(0.05, go.set).start()
    background.start(lambda: done.append(2))
    assert done[0] == 1
    background.wait()
    assert done == [1, 2]
    assert not background.is_busy
