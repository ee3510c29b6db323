"""The environment of a launch, checked against torch_xla itself."""

import math

import pytest

from tests.topology.test_chips import HOSTS, POSSIBLE
from xla_nb.topology import environment
from xla_nb.topology.chips import process_bounds

NO_HOSTS = "WARNING: could not determine TPU worker hostnames or IP addresses, please set this"


def kaggle(accelerator):
    """Variables that Kaggle sets on its machines."""
    _, _, host, chips_per_host = HOSTS[accelerator]
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": accelerator,
        "TPU_HOST_BOUNDS": host,
        "TPU_CHIPS_PER_HOST_BOUNDS": chips_per_host,
        "TPU_WORKER_HOSTNAMES": NO_HOSTS,
        "TPU_PROCESS_ADDRESSES": "local",
        "CLOUD_TPU_TASK_ID": "0",
        "TPU_WORKER_ID": "0",
    }


def used(accelerator):
    """Variables that `xmp.spawn(nprocs=1)` leaves in a notebook, plus a tutorial's extras."""
    return {
        "PJRT_DEVICE": "TPU",
        "PJRT_LOCAL_PROCESS_RANK": "0",
        "PJRT_LOCAL_PROCESS_COUNT": "1",
        "TPU_VISIBLE_CHIPS": "0",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_PORT": "8476",
        "TPU_NUM_DEVICES": "4",
    }


PRESETS = {"bare": lambda accelerator: {}, "kaggle": kaggle, "used": used}


def metadata(accelerator):
    """Values from a TPU VM's metadata server."""
    _, _, host, chips_per_host = HOSTS[accelerator]
    return {
        "tpu-env": f"ACCELERATOR_TYPE: '{accelerator}'\nTPU_PROCESS_BOUNDS: '{host}'\n"
        f"TPU_CHIPS_PER_PROCESS_BOUNDS: '{chips_per_host}'\nWORKER_ID: '0'\n",
        "worker-network-endpoints": "unknown:unknown:10.0.0.2",
    }


def clean(environ, *, device, sets=None, user_env=None):
    return environment.clean(environ, device=device, sets=sets or {}, user_env=user_env or {})


# --- the environment of a launch ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "name", "value"),
    [
        ("CPU", "XLA_USE_SPMD", "1"),
        ("TPU", "XLA_AUTO_SPMD", "true"),
        ("CPU", "CPU_NUM_DEVICES", "4"),
        ("CPU", "PJRT_LOCAL_PROCESS_COUNT", "1"),
        ("CPU", "WORLD_SIZE", "1"),
        ("TPU", "TPU_PROCESS_ADDRESSES", "local"),
        ("TPU", "TPU_VISIBLE_DEVICES", "0"),
        ("TPU", "TPU_WORKER_HOSTNAMES", NO_HOSTS),
        ("TPU", "TPU_NUM_DEVICES", "4"),
        ("TPU", "SKIP_MEGASCALE_PJRT_CLIENT", "true"),
    ],
)
def test_harmful_variables_are_removed_with_a_notice_unless_requested(device, name, value):
    cleaned, changes = clean({name: value}, device=device)
    assert name not in cleaned
    (line,) = changes
    assert line.startswith(f"removed {name}=")
    assert "\n" not in line

    cleaned, changes = clean({name: "old"}, device=device, user_env={name: value})
    assert cleaned[name] == value
    (line,) = changes
    assert line.startswith(f"kept {name}=")


@pytest.mark.parametrize(
    ("device", "name", "value"),
    [
        ("CPU", "XLA_USE_SPMD", "0"),
        ("CPU", "CPU_NUM_DEVICES", "1"),
        ("CPU", "MASTER_PORT", "12399"),
        ("CPU", "TPU_VISIBLE_DEVICES", "0"),
        ("TPU", "CPU_NUM_DEVICES", "4"),
        ("TPU", "TPU_WORKER_HOSTNAMES", "localhost"),
        ("TPU", "TPU_WORKER_HOSTNAMES", "10.0.0.2,10.0.0.3"),
        ("TPU", "TPU_WORKER_ADDRS", "t1v-n-0:8470:10.0.0.2,t1v-n-1:8470:10.0.0.3"),
        ("TPU", "XLA_FLAGS", "--xla_dump_to=/tmp/x"),
    ],
)
def test_harmless_variables_are_kept(device, name, value):
    cleaned, changes = clean({name: value}, device=device)
    assert cleaned == {name: value, "PJRT_DEVICE": device}
    assert not changes


def test_clean_does_not_modify_its_argument():
    environ = {"XLA_USE_SPMD": "1"}
    clean(environ, device="CPU")
    assert environ == {"XLA_USE_SPMD": "1"}


def test_torchruns_address_is_removed_with_its_other_variables():
    environ = {"TORCHELASTIC_RUN_ID": "1", "MASTER_ADDR": "localhost", "RANK": "0"}
    cleaned, changes = clean(environ, device="CPU")
    assert cleaned == {"PJRT_DEVICE": "CPU"}
    assert len(changes) == 3


def test_variable_changed_by_the_launch_gets_a_notice():
    environ = {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1"}
    cleaned, changes = clean(environ, device="TPU", sets=process_bounds("v5litepod-8", 8, 4))
    assert cleaned["TPU_PROCESS_BOUNDS"] == "2,2,1"
    assert changes == ["set TPU_PROCESS_BOUNDS=2,2,1: this launch needs it"]


# --- results of torch_xla -----------------------------------------------------------------------


def cases():
    """Every host, preset and -n: the keys of `answers`."""
    for accelerator in HOSTS:
        for preset in PRESETS:
            yield accelerator, preset, "as it is"
            for n in [None, *POSSIBLE[accelerator]]:
                yield accelerator, preset, n


def case(accelerator, preset, n):
    """A request to the process with torch_xla; n "as it is" skips our changes."""
    chips = HOSTS[accelerator][0]
    environ = PRESETS[preset](accelerator)
    if n == "as it is":
        environ = {**environ, "PJRT_DEVICE": "TPU"}
    else:
        environ, _ = clean(environ, device="TPU", sets=process_bounds(accelerator, chips, n))
    return {"environ": environ, "chips": chips, "metadata": metadata(accelerator)}


@pytest.fixture(scope="module")
def answers(torch_xla_says):
    return dict(zip(cases(), torch_xla_says([case(*key) for key in cases()]), strict=True))


@pytest.mark.parametrize(
    ("accelerator", "preset", "n"), [key for key in cases() if key[2] != "as it is"]
)
def test_torch_xla_starts_n_ranks_with_distinct_chips_and_ports(answers, accelerator, preset, n):
    chips, devices, *_ = HOSTS[accelerator]
    answer = answers[accelerator, preset, n]
    processes = answer["processes"]
    ranks = answer["ranks"]

    def each(name):
        return [rank[name] for rank in ranks]

    assert processes * devices == (n or chips * devices)
    assert each("CLOUD_TPU_TASK_ID") == [str(i) for i in range(processes)]
    assert each("TPU_VISIBLE_CHIPS") == [str(i) for i in range(processes)]
    assert each("PJRT_LOCAL_PROCESS_RANK") == [str(i) for i in range(processes)]
    assert set(each("PJRT_LOCAL_PROCESS_COUNT")) == {str(processes)}
    assert set(each("TPU_CHIPS_PER_PROCESS_BOUNDS")) == {"1,1,1"}
    (bounds,) = set(each("TPU_PROCESS_BOUNDS"))
    assert math.prod(map(int, bounds.split(","))) == processes
    (addresses,) = set(each("TPU_PROCESS_ADDRESSES"))
    assert addresses.split(",") == [f"localhost:{port}" for port in each("TPU_PROCESS_PORT")]
    assert len(set(each("TPU_PROCESS_PORT"))) == processes


@pytest.mark.parametrize("accelerator", HOSTS)
def test_variables_for_all_chips_match_torch_xlas_defaults(answers, accelerator):
    assert answers[accelerator, "bare", None] == answers[accelerator, "bare", "as it is"]


@pytest.mark.parametrize("accelerator", ["v4-8", "v5litepod-8", "v6e-8"])
def test_uncleaned_kaggle_variables_break_every_rank(answers, accelerator):
    ranks = answers[accelerator, "kaggle", "as it is"]["ranks"]
    assert {rank["CLOUD_TPU_TASK_ID"] for rank in ranks} == {"0"}
    assert {rank["TPU_PROCESS_ADDRESSES"] for rank in ranks} == {"local"}


def test_uncleaned_variables_of_a_used_notebook_start_one_process(answers):
    assert answers["v5litepod-8", "used", "as it is"]["processes"] == 1


def test_variables_that_torch_xla_sets_itself_are_changed_silently():
    notebook = {"TF_CPP_MIN_LOG_LEVEL": "1", "XLA_USE_SPMD": "1"}
    wanted = {"TF_CPP_MIN_LOG_LEVEL": "2", "XLA_USE_SPMD": "0"}
    cleaned, changes = environment.clean(notebook, device="CPU", sets=wanted, user_env={})
    assert (changes, wanted.items() <= cleaned.items()) == ([], True)
