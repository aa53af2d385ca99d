"""NCCL, gloo, rendezvous and DistributedDataParallel."""

from holdfast.diagnosis.signatures.signature import Blame, signature

COLLECTIVES = (
    signature(
        "nccl-timeout",
        r"Watchdog caught collective operation timeout",
        Blame.CONSEQUENCE,
        "A collective did not complete within the timeout: some rank did not take part in it.",
        "Find the rank that is missing in this list of timeouts or has a lower SeqNum: it hung, "
        "exited, or called another collective. `holdfast stacks` shows it while it hangs. If a "
        "rank is merely slow (evaluation, saving), raise timeout= of init_process_group.",
    ),
    signature(
        "nccl-watchdog-stuck",
        r"ProcessGroupNCCL's watchdog got stuck|Heartbeat monitor timed out",
        Blame.CODE,
        "The NCCL watchdog thread of this process was blocked, often in a CUDA call that does not "
        "return or waiting for the GIL.",
        "Look for code that holds the GIL for minutes, and for a rank that hung (`holdfast "
        "stacks`); then check the GPU (`nvidia-smi`, XID messages in `dmesg`). "
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC raises the limit.",
        general=True,
    ),
    signature(
        "nccl-duplicate-gpu",
        r"Duplicate GPU detected",
        Blame.CODE,
        "Two ranks of one node use the same GPU.",
        "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective; "
        "workers_per_node must not exceed the number of GPUs.",
    ),
    signature(
        "nccl-shared-memory",
        r"Error while creating shared memory segment|Call to (?:posix_fallocate|ftruncate) failed|"
        r"failed to extend /dev/shm/nccl",
        Blame.CONFIGURATION,
        "NCCL could not create its segment in /dev/shm: it is too small.",
        "Set resources.shm in the job file (at least 1Gi per GPU), or --shm-size for Docker.",
    ),
    signature(
        "nccl-no-interface",
        r"Bootstrap : no socket interface found|connecting to address .*is neither AF_INET",
        Blame.CONFIGURATION,
        "NCCL found no network interface with the name that NCCL_SOCKET_IFNAME asks for.",
        "Compare NCCL_SOCKET_IFNAME with `ip addr` on the node; `^lo,docker` excludes instead of "
        "selecting, `=eth0` is exact.",
    ),
    signature(
        "nccl-connect-failed",
        r"(?:socketStartConnect|socketPollConnect|socketProgressConnect|ncclSocketConnect).*"
        r"(?:failed|returned \d+\(|[Rr]efused|timed out)|"
        r"NCCL WARN (?:Net : )?(?:Call to connect\b|Connect to ).*failed",
        Blame.NETWORK,
        "NCCL could not connect to another rank.",
        "Open all TCP ports between the nodes (NetworkPolicy, security group, firewall), and make "
        "sure that NCCL_SOCKET_IFNAME names an interface that reaches the other nodes.",
    ),
    signature(
        "nccl-ib-retry-exceeded",
        r"NET/IBP? ?: ?Got completion.*(?:error 12,|status=12 |vendor err 129)",
        Blame.NETWORK,
        "An InfiniBand or RoCE peer did not acknowledge in time: a link flapped, or the peer died.",
        "Check `ibstat`, link error counters and the switch port of both nodes. NCCL_IB_TIMEOUT=22 "
        "and NCCL_IB_RETRY_CNT=7 let short flaps pass.",
    ),
    signature(
        "nccl-ib-flushed",
        r"NET/IBP? ?: ?Got completion.*(?:error 5,|status=5 )",
        Blame.CONSEQUENCE,
        "An InfiniBand or RoCE connection had failed before: what was still to be sent was "
        "dropped.",
        "Look for the first `Got completion` with another number, on this rank or its peer.",
    ),
    signature(
        "nccl-ib-error",
        r"NET/IBP? ?: ?Got (?:completion|async)",
        Blame.NETWORK,
        "An InfiniBand or RoCE transfer failed.",
        "The number is that of ibv_wc_status: 4 is memory that could not be read or written (GPU "
        "Direct RDMA: nvidia_peermem, ACS, IOMMU), 10 and 11 are those of the peer. "
        "NCCL_IB_DISABLE=1 confirms.",
        general=True,
    ),
    signature(
        "nccl-ib-memlock",
        r"ibv_(?:reg_mr|create_qp|create_cq)\w* failed with error (?:Cannot allocate memory|12)",
        Blame.CONFIGURATION,
        "RDMA memory could not be registered: the limit of locked memory is too low.",
        "Give the container IPC_LOCK (network.rdma does); set `ulimit -l unlimited`.",
    ),
    signature(
        "nccl-ofi-unusable",
        r"NET/OFI (?:Unable to find a protocol that worked|aws-ofi-nccl initialization failed)",
        Blame.CONFIGURATION,
        "The AWS OFI plug-in of NCCL found no usable fabric provider.",
        "Request vpc.amazonaws.com/efa for the pods, install a plug-in that fits the NCCL version, "
        "and run `fi_info -p efa` in the pod.",
    ),
    signature(
        "nccl-ofi-failed",
        r"NET/OFI Request \S+ completed with error",
        Blame.NETWORK,
        "A transfer over libfabric (EFA, Slingshot) failed: the network lost it, or the peer "
        "exited.",
        "Look whether the peer failed first; else check the adapter of both nodes and the security "
        "group, which must allow all traffic within itself.",
        general=True,
    ),
    signature(
        "nccl-version-mismatch",
        r"Mismatched NCCL version detected|NCCL version mismatch",
        Blame.ENVIRONMENT,
        "Ranks run different versions of NCCL.",
        "Use one image, by digest, on all nodes; look for another libnccl in LD_LIBRARY_PATH.",
    ),
    signature(
        "nccl-no-peer-access",
        r"peer access is not supported between these two devices|peer mapping resources exhausted",
        Blame.CONFIGURATION,
        "Two GPUs of one node cannot read each other's memory, or one has too many peers.",
        "Set NCCL_P2P_DISABLE=1 to confirm. One process may use 8 peers: start one per GPU. "
        "GeForce cards (RTX 3090, 4090) cannot do it; for others check ACS and IOMMU, and the "
        "fabric manager.",
    ),
    signature(
        "nccl-system-error",
        r"ncclSystemError|unhandled system error",
        Blame.NETWORK,
        "A system call of NCCL failed: mostly a connection, sometimes shared memory or a device.",
        "Set NCCL_DEBUG=INFO and look for the first `NCCL WARN` line above the exception: it names "
        "the call. Then check interfaces, firewalls and /dev/shm.",
        general=True,
    ),
    signature(
        "nccl-cuda-error",
        r"ncclUnhandledCudaError|unhandled cuda error",
        Blame.ENVIRONMENT,
        "A CUDA call inside NCCL failed.",
        "Look for an earlier CUDA error of this rank and for XID messages in `dmesg`; with "
        "NCCL_DEBUG=INFO the line before names the call. Out of memory looks like this, too.",
        general=True,
    ),
    signature(
        "nccl-peer-closed",
        r"Connection closed by remote peer|socketProgress\w*: (?:Call to|Connection)|"
        r"NCCL WARN (?:Net : )?Call to (?:recv|send) .*failed|NCCL WARN Socket recv failed",
        Blame.CONSEQUENCE,
        "A peer of this rank exited, or its connection broke.",
        "Look at the rank that failed first: `holdfast why` names it.",
    ),
    signature(
        "nccl-remote-error",
        r"ncclRemoteError",
        Blame.CONSEQUENCE,
        "A peer of this rank exited, or its connection broke.",
        "Look at the rank that failed first: `holdfast why` names it.",
    ),
    signature(
        "nccl-internal-error",
        r"ncclInternalError|ProcessGroupNCCL\S*, internal error",
        Blame.ENVIRONMENT,
        "A check inside NCCL failed: mostly versions or a topology that it does not understand.",
        "Set NCCL_DEBUG=INFO and read the WARN line above. NCCL 2.18 reports errors of the network "
        "and lost peers like this, too; else compare driver, CUDA and NCCL versions.",
        general=True,
    ),
    signature(
        "nccl-invalid-usage",
        r"ncclInvalidUsage|ncclInvalidArgument|ProcessGroupNCCL\S*, invalid usage",
        Blame.CODE,
        "A collective was called with arguments that NCCL refuses.",
        "Ranks must call the same collective with the same sizes and types, each on its own GPU.",
        general=True,
    ),
    signature(
        "nccl-aborted",
        r"NCCL communicator was aborted|Some NCCL operations have failed or timed out|"
        r"we are taking the entire process down",
        Blame.CONSEQUENCE,
        "A collective of this rank had failed or timed out before, so PyTorch stopped NCCL and "
        "the process.",
        "Look for the first error above, and at the rank that failed first: `holdfast why` names "
        "it.",
    ),
    signature(
        "tensors-not-contiguous",
        r"Tensors must be contiguous",
        Blame.CODE,
        "A collective was called with a tensor that is not contiguous in memory, such as the "
        "result of a transpose or a slice.",
        "Pass tensor.contiguous(). If the call is a library's, update it: DeepSpeed and Accelerate "
        "had this error in old versions.",
    ),
    signature(
        "no-gpu-for-nccl",
        r"ProcessGroupNCCL is only supported with GPUs, no GPUs found|doesn't have NCCL built in",
        Blame.CONFIGURATION,
        "The backend is nccl, and this process sees no GPU, or its PyTorch was built without NCCL.",
        "Request GPUs in the job file (resources.gpus), check CUDA_VISIBLE_DEVICES, install a "
        "build of PyTorch for CUDA, or use gloo.",
    ),
    signature(
        "collective-mismatch",
        r"Detected mismatch between collectives on ranks|DistributedOperationException",
        Blame.CODE,
        "Ranks called different collectives, or the same one with different shapes.",
        "The message names both calls. Look for a branch that only some ranks take "
        "(`if rank == 0:` around a collective, a last batch that is smaller).",
    ),
    signature(
        "nccl-sizes-differ",
        r"collective mismatch error, local size|Message truncated : received \d+ bytes instead of|"
        r"NCCL WARN Mismatched collective detected",
        Blame.CODE,
        "Ranks called different collectives, or the same one with different sizes.",
        "Look for a branch that only some ranks take, and for NCCL variables (NCCL_ALGO, "
        "NCCL_PROTO) or versions that are not the same on all nodes. "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL names the calls.",
    ),
    signature(
        "barrier-missed",
        r"failed to pass monitoredBarrier",
        Blame.CONSEQUENCE,
        "The named rank did not reach the barrier in time.",
        "Look at what that rank did: `holdfast stacks NAME --rank R`.",
    ),
    signature(
        "ddp-models-differ",
        r"DDP expects same model across all ranks|params? .* appears not to match (?:the )?sizes",
        Blame.CODE,
        "Ranks have built different models.",
        "Build the model from the same arguments on every rank; look for sizes that come from "
        "the local data.",
    ),
    signature(
        "ddp-unused-parameters",
        r"Expected to have finished reduction in the prior iteration|"
        r"your LightningModule has parameters that were not used in producing the loss",
        Blame.CODE,
        "Some parameters got no gradient in the last step.",
        "Take them out of the model, use their outputs in the loss, or pass "
        "find_unused_parameters=True to DistributedDataParallel.",
    ),
    signature(
        "ddp-ready-twice",
        r"Expected to mark a variable ready only once",
        Blame.CODE,
        "A parameter got its gradient twice in one step.",
        "Use non-reentrant checkpointing (use_reentrant=False), or static_graph=True; do not share "
        "parameters between forward passes of one step.",
    ),
    signature(
        "gloo-timeout",
        r"Timed out waiting \d+ms for (?:recv|send) operation to complete",
        Blame.CONSEQUENCE,
        "A rank waited for another one that did not come.",
        "Look for the rank that does not report this: it hung or exited.",
    ),
    signature(
        "gloo-peer-closed",
        r"Connection closed by peer \[|gloo.*(?:Connection reset by peer|Broken pipe)",
        Blame.CONSEQUENCE,
        "A peer of this rank has exited.",
        "Look at the rank that failed first: `holdfast why` names it.",
    ),
    signature(
        "gloo-address-refused",
        r"connectFullMesh failed.*Connection refused|"
        r"gloo/transport/tcp/\S+ ERROR failed to connect.*Connection refused",
        Blame.CONFIGURATION,
        "Nobody listens at the address that another rank left for this one: it is that of an "
        "earlier attempt, or the rank has just exited.",
        'With init_process_group(init_method="file://..."), remove init_method, or name a file of '
        "its own for each attempt (HOLDFAST_ATTEMPT): the file keeps the addresses of ranks that "
        "have died, and each further attempt may read them. Else look why the other rank exited.",
    ),
    signature(
        "gloo-no-address",
        r"Unable to resolve hostname to a \(local\) address(?!.*loopback address as fallback)|"
        r"ifa != nullptr",
        Blame.CONFIGURATION,
        "gloo found no local address for this node's host name.",
        "Set GLOO_SOCKET_IFNAME to the interface that reaches the other nodes.",
    ),
    signature(
        "rendezvous-refused",
        r"client socket has failed to connect to .*(?:errno: 111|Connection refused)",
        Blame.NETWORK,
        "Nothing listens at MASTER_ADDR:MASTER_PORT.",
        "Rank 0 has not started yet, has exited, or listens elsewhere: look at its log first; then "
        "check that MASTER_ADDR and MASTER_PORT are the same on all nodes.",
    ),
    signature(
        "rendezvous-timeout",
        r"Timed out after \d+ seconds waiting for clients|RendezvousTimeoutError|"
        r"connect\(\) timed out\. Original timeout was|"
        r"client socket has timed out after \d+(?:ms|s| seconds)",
        Blame.NETWORK,
        "Not all ranks have reached the rendezvous in time.",
        "Compare the number of ranks that started with WORLD_SIZE; look for pods that are pending, "
        "and for a firewall between the nodes.",
    ),
    signature(
        "rendezvous-closed",
        r"failed to shutdown the rendezvous|RendezvousClosedError|RendezvousGracefulExitError",
        Blame.CONSEQUENCE,
        "The rendezvous of torchrun was closed because another node had left it.",
        "Look at the node that failed first: `holdfast why` names it.",
    ),
    signature(
        "rendezvous-unreachable",
        r"The connection to the C10d store has failed",
        Blame.NETWORK,
        "torchrun could not reach the store of its rendezvous, or lost it.",
        "At the start: is the node of --rdzv-endpoint up, does its name resolve to that node's own "
        "address, and is the port open? Later: the torchrun that serves the store has exited, so "
        "look at its log first.",
        general=True,
    ),
    signature(
        "process-group-missing",
        r"Default process group (?:has not been|is not) initialized",
        Blame.CODE,
        "torch.distributed was used before init_process_group, or after destroy_process_group.",
        "Call init_process_group first, and start the script with `holdfast run` or torchrun. For "
        "one process: replace SyncBatchNorm by BatchNorm, and ask dist.is_initialized() before "
        "collectives.",
    ),
    signature(
        "rendezvous-environment",
        r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set|"
        r"KeyError: '(?:LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'$",
        Blame.CONFIGURATION,
        "init_process_group found no rank in the environment.",
        "Start the script with `holdfast run` or torchrun, not with plain python.",
    ),
    signature(
        "process-group-twice",
        r"trying to initialize the default process group twice",
        Blame.CODE,
        "init_process_group was called although the process group exists.",
        "Call it once: the Trainer, Accelerate, Lightning or DeepSpeed may have done so already. "
        "Ask dist.is_initialized() before.",
    ),
    signature(
        "invalid-rank",
        r"Invalid rank -?\d+, rank should be in the interval|"
        r"Rank \d+ is out of range\. Valid ranks",
        Blame.CONFIGURATION,
        "A rank is not below the world size; -1 means that it was not set.",
        "Read RANK and WORLD_SIZE from the environment after the launcher has set them; do not "
        "pass --local_rank defaults of -1 on.",
    ),
    signature(
        "store-lost",
        r"recvValue failed on|Failed to recv, got 0 bytes|Stop_waiting response is expected|"
        r"TCPStore.*(?:Broken pipe|reset by peer)",
        Blame.CONSEQUENCE,
        "The rendezvous store is gone: the process that serves it has exited.",
        "Look at the rank or node that failed first: `holdfast why` names it.",
    ),
    signature(
        "store-timeout",
        r"wait timeout after \d+ms, keys|waitForInput: socket .* timed out|: Socket Timeout$|"
        r"Timed out initializing process group in store based barrier",
        Blame.CONSEQUENCE,
        "A rank waited in the rendezvous store for a key that nobody wrote: some rank did not "
        "come.",
        "Look for the rank that does not report this: it hung, exited or is still starting.",
    ),
    signature(
        "port-taken",
        r"(?i)address already in use|EADDRINUSE",
        Blame.ENVIRONMENT,
        "A port that this process wants to listen on is taken.",
        "A former process of the job may still run (`ss -ltnp` shows it), or two jobs share "
        "MASTER_PORT. Under Holdfast each attempt gets a port of its own.",
    ),
    signature(
        "child-failed",
        r"elastic\.multiprocessing\.errors\.ChildFailedError|"
        r"failed \(exitcode: (?!-(?:7|9|11)\))-?\d+\) local_rank|"
        r"sigkill_handler\] Killing subprocess|exits with return code = (?!0|-(?:7|9|11)\b)|"
        r"ProcessExitedException: process \d+ terminated with (?!signal SIG(?:KILL|SEGV|BUS))",
        Blame.CONSEQUENCE,
        "The launcher (torchrun, deepspeed, spawn) reports that a worker failed; the reason is in "
        "that worker's own output.",
        "Look above for its traceback; torchrun names the rank under `Root Cause (first observed "
        "failure)`.",
    ),
    signature(
        "terminated-by-launcher",
        r"SignalException: Process \d+ got signal: (?:15|2)\b|SIGTERMException",
        Blame.CONSEQUENCE,
        "The launcher was asked to stop: by a scheduler, a preemption or a person.",
        "Look at events of the pod or the job of the scheduler at that time.",
    ),
)
