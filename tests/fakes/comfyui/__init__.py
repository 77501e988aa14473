"""A ComfyUI for tests: real HTTP and WebSocket on loopback, held to the recordings of the real one.

    async with fake_comfyui("0.33.0") as comfy:            # or "0.3.64": the two versions of the recordings
        ... POST f"{comfy.url}/prompt" ...

It runs graphs of EmptyImage, LoadImage, ImageScale, ImageBlur, ImageInvert, SaveImage, PreviewImage and PreviewAny as
recorded (pictures of one colour, real PNG files with the prompt inside), and CheckpointLoaderSimple, CLIPTextEncode,
EmptyLatentImage, KSampler and VAEDecode in miniature: those have seeds, models, steps and previews and are in no
recording. Every route is there with and without `/api`; `/api/jobs…` only with 0.33.0.

What happened
    comfy.submitted         [Submitted(prompt_id, digest, number, client_id, graph)]: what went into the queue, over all
                            restarts; `comfy.submissions()` counts by prompt_id, for "never a second submit"
    comfy.asked             [Asked(op, method, path, query, headers, body)]; `comfy.count(Op.SUBMIT)`
    comfy.queue             .pending, .running, .history; comfy.folders: .outputs(), .root / "input" | "output" | "temp"
    comfy.sockets.opened    WebSockets of this life, with .sid, .sent, .flags; comfy.lives; comfy.faults.happened

How fast
    comfy.hold("ImageBlur") hold nodes of a class (or those a function picks, or all) inside their execution;
    comfy.step(2)           let so many go on; comfy.release() ends holding. A KSampler is held at each step, too.
    comfy.pace.node_s       how long a node takes that is not held (0)
    comfy.hold_history()    the race: `execution_success` is out, the history does not have the run before
                            `release_history()`

Waiting (never sleep): until_held(class) -> RunningNode, until_submitted(n) -> Submitted, until_asked(op, n),
    until_sockets(n), until_idle(), until_settled() (idle or held, all messages sent), until(function)

What goes wrong with requests: comfy.fault(Op.SUBMIT, How.LOSE_ANSWER, times=1), in order, -1 for ever
    Op      SUBMIT QUEUE DELETE HISTORY JOB JOBS CANCEL INTERRUPT VIEW UPLOAD CLASSES STATS FEATURES SOCKET READ ANY
    How     DROP ERROR FULL (413) GATEWAY (502)     nothing was done
            LOSE_ANSWER ERROR_AFTER CUT GARBAGE EMPTY HUGE   it was done; the answer is lost, 500, half, HTML, nothing,
                                                             enormous
            TWICE                                   it was done twice; the first answer
            HOLD LATE                               until comfy.faults.let_go(): the stalled event loop, the late answer
            HIDE                                    HISTORY, JOB, JOBS, QUEUE: as if there were nothing
            IGNORE                                  CANCEL `cancelled: false`; INTERRUPT, DELETE: 200 and nothing done
    So: accepted but dropped is LOSE_ANSWER, accepted but 500 is ERROR_AFTER, not accepted and dropped is DROP.

What goes wrong with runs
    comfy.fail("KSampler", OUT_OF_MEMORY.format(1 << 40)), comfy.fail("SaveImage", OUT_OF_DISK, "OSError"): the next
    node of the class fails; comfy.folders.disk_is_full; a too large EmptyImage fails of itself
    comfy.claim("SaveImage", {"images": HOSTILE_FILES})  the next node says it has shown this instead (hostile.py);
                                                         MANY_FILES are ten thousand

What others do
    comfy.lose(prompt_id)   deleted from history and queue; clear_history(); interrupt(); fake_comfyui(history_cap=1)
    comfy.delete_outputs()  files gone, history and cache still name them; replace_outputs(b"<html>"),
                            grow_outputs(1 << 30) (sparse)
    comfy.remove_class(name), comfy.change_input("ImageScale", "upscale_method", [["area"]])   /object_info has changed
    await comfy.kill(), comfy.start(), comfy.restart()   SIGKILL and again on the same port: memory empty, files there;
                            in between the port refuses connections
    comfy.drop_sockets()    every WebSocket is cut; comfy.mute_sockets(): all stay open and silent for ever;
                            fault(Op.SOCKET, How.ERROR, -1): none can be opened; comfy.previews = True: binary frames

What it does of itself, because the real one does
    The same prompt_id twice runs twice. Two pending with one id and one `number` break the heap: POST /queue answers
    500 and has deleted one (0.33.0; with 0.3.64 only when the graphs differ). A fully cached run shows the old file.
    200 may carry node_errors. An interrupt is seen before the next node (in a KSampler at each step), so never after
    the last. After the end of a socket, another one of the same clientId is deaf. A prompt without client_id sends
    nobody its events, but `progress_state` to all. Refused prompts use up a number.

Not recorded, from the real one's documentation or a guess: KSampler's `progress` messages and binary frames, a cancel
of what is not a UUID (`cancelled: false`), counts of outputs that are not files (not counted).
"""

from tests.fakes.comfyui.classes import OUT_OF_DISK, OUT_OF_MEMORY
from tests.fakes.comfyui.faults import How, Op
from tests.fakes.comfyui.hostile import HOSTILE_FILES, MANY_FILES
from tests.fakes.comfyui.server import FakeComfy, fake_comfyui

__all__ = [
    "HOSTILE_FILES",
    "MANY_FILES",
    "OUT_OF_DISK",
    "OUT_OF_MEMORY",
    "FakeComfy",
    "How",
    "Op",
    "fake_comfyui",
]
