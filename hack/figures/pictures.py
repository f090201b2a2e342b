"""What the figures show."""

from hack.figures.canvas import Canvas


def flow() -> Canvas:
    """The road from an archive to a trained model."""
    c = Canvas(
        980, 330, "The dataset Job writes shards on the data claim; trainers read them and save on the results claim"
    )
    c.box("plain", (20, 30, 170, 90), "archive or folder", "Kaggle, https, s3, gs,", "a path on a claim")
    c.box("job", (250, 30, 160, 90), "dataset Job", "ranged reads, CRC-32,", "seekable JPEGs")
    c.box("disk", (465, 30, 155, 90), "claim: data", "shards, indexes,", "the manifest last")
    c.box("job", (710, 20, 250, 110), "one of three trains", "PyTorchJob: torchrun, DDP or FSDP",
          "MPIJob: mpirun, Horovod", "TrainJob: Kubeflow Trainer v2")  # fmt: skip
    c.box("disk", (710, 215, 250, 90), "claim: results", "checkpoints, metrics, report,", "weights that load anywhere")
    c.box("plain", (250, 215, 390, 90), "helm install run charts/trainyard -f my-run.yaml",
          "claims, secrets by reference, dataset, job:", "each fact once")  # fmt: skip
    c.arrow((190, 75), (246, 75))
    c.arrow((410, 75), (461, 75))
    c.arrow((620, 75), (706, 75), says="waits for it")
    c.arrow((850, 130), (850, 211), says="saves", at=(880, 176))
    c.arrow((810, 215), (810, 134), says="resumes", at=(775, 176))
    c.arrow((330, 215), (330, 124))
    c.arrow((555, 215), (555, 124))
    c.arrow((640, 225), (706, 134))
    return c


def life() -> Canvas:
    """A run's life, with exit codes."""
    c = Canvas(
        980, 400, "A run's life: preflight, lease, resume, train, publish; exit codes of 128 and above start it again"
    )
    c.box("job", (20, 40, 165, 80), "preflight", "dataset, GPU, /dev/shm,", "peers reach each other")
    c.box("job", (222, 40, 165, 80), "lease", "of the run directory:", "the newest job writes")
    c.box("job", (424, 40, 165, 80), "resume", "the newest checkpoint,", "the next sample")
    c.box("job", (626, 40, 150, 80), "train", "steps, validation,", "checkpoints")
    c.box("disk", (813, 40, 147, 80), "publish", "weights, report", "exit 0")
    for left in (185, 387, 589, 776):
        c.arrow((left, 80), (left + 33, 80))
    c.box("plain", (120, 220, 600, 70), "the operator starts the pods again",
          "143 stopped after saving · 138 a rank hung or was lost · 137, 139 killed, crashed",
          "200 storage did not answer · 201 a GPU failed · 202 unknown, once")  # fmt: skip
    c.arrow((695, 120), (695, 216), says="128 and above", at=(645, 175))
    c.arrow((120, 255), (60, 255), (60, 124))
    c.box("end", (760, 220, 200, 70), "ended for good", "2 settings or input · 77 NaN", "1 a bug, a full volume")
    c.arrow((730, 120), (850, 216), says="below 128", at=(850, 160))
    c.word(
        490, 340, "Restarts without a new checkpoint are counted: after run.max_restarts in a row the run ends with 1."
    )
    c.word(490, 362, "A newer job takes the lease: the older one writes nothing more and ends with 2.")
    return c


def ownership() -> Canvas:
    """Release, job, run directory, claims: what makes and what outlives what."""
    c = Canvas(980, 330, "A release makes a job and claims; a changed job has another name, the run directory does not")
    c.box("plain", (20, 120, 190, 90), "release  run", "helm install, Argo CD")
    c.box(
        "job", (300, 30, 260, 80), "job  run-pytorchjob-1a2b3c4d", "named after what it runs:", "a change is a new job"
    )
    c.box(
        "disk",
        (300, 200, 260, 100),
        "claims  run-data, run-results",
        "kept on uninstall;",
        "deleted by kubectl delete pvc",
    )
    c.box(
        "job",
        (660, 30, 300, 80),
        "pods  master-0, worker-0 ...",
        "recreated by the operator, with a",
        "log each beside the run",
    )
    c.box("disk", (660, 200, 300, 100), "run directory  runs/run", "named after the release, or training.name;",
          "one writer, the newest job")  # fmt: skip
    c.arrow((210, 150), (296, 80), says="makes", at=(240, 105))
    c.arrow((210, 180), (296, 240), says="makes", at=(240, 225))
    c.arrow((560, 70), (656, 70), says="makes")
    c.arrow((560, 250), (656, 250), says="holds")
    c.arrow((810, 110), (810, 196), says="write", at=(840, 158))
    return c


def batch() -> Canvas:
    """Global batch, processes, micro batches."""
    c = Canvas(980, 290, "A global batch of 2,048 samples: 128 for each of 16 processes, which forward 64 at a time")
    c.box("plain", (20, 30, 940, 60), "batch.global: 2048 samples, one optimizer step",
          "the learning rate is for it: optimizer.lr x 2048 / optimizer.lr_batch")  # fmt: skip
    for number in range(4):
        left = 20 + number * 240
        name = f"process {number}" if number < 3 else "... process 15"
        c.box("job", (left, 130, 220, 60), name, "2048 / 16 = 128 samples")
        for half in range(2):
            c.box("disk", (left + half * 115, 220, 105, 50), "forward", "micro: 64")
        c.arrow((left + 110, 90), (left + 110, 126))
        for half in range(2):
            c.arrow((left + 52 + half * 115, 190), (left + 52 + half * 115, 216))
    return c


FIGURES = {"flow": flow, "life": life, "ownership": ownership, "batch": batch}
