"""Memory, files, limits and signals of the machine."""

from holdfast.diagnosis.signatures.signature import Blame, signature

HOST = (
    signature(
        "host-memory",
        r"Out of memory: Kill(?:ed)? process|Memory cgroup out of memory|oom[-_]kill(?::| event)|"
        r"OOMKilled|: tasks? [\d,-]+: Out Of Memory",
        Blame.CONFIGURATION,
        "The kernel killed a process: the machine or the container ran out of memory.",
        "Raise the memory request and limit together, use fewer data loader workers, and look for "
        "a process that grows. Files in /dev/shm and in emptyDir of medium Memory count as well.",
    ),
    signature(
        "loader-shared-memory",
        r"DataLoader worker .*(?:Bus error|out of shared memory)|"
        r"unable to allocate shared memory\(shm\)|"
        r"unable to (?:write to file|open shared memory object|mmap \d+ bytes from file) </?torch_",
        Blame.CONFIGURATION,
        "/dev/shm is too small for the batches that data loader workers hand over.",
        "Set resources.shm in the job file, --shm-size or --ipc=host for Docker; or fewer "
        "num_workers, a smaller prefetch_factor.",
    ),
    signature(
        "loader-killed",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: Killed|exited "
        r"unexpectedly(?! with exit code))",
        Blame.CONFIGURATION,
        "A data loader worker was killed, mostly by the kernel's out-of-memory killer.",
        "Look for oom-kill in `dmesg`; use fewer num_workers, and keep large Python lists out of "
        "the data set (each worker copies them as it touches them).",
    ),
    signature(
        "killed-by-signal",
        r"^Killed$|: +\d+ Killed\b|\(exitcode: -9\)|return code = -9\b|terminated with signal "
        r"SIGKILL|Signal 9 \(SIGKILL\) received by PID",
        Blame.CONFIGURATION,
        "A process was killed by SIGKILL, which is mostly the kernel's doing: the machine or the "
        "container ran out of memory.",
        "Look for oom-kill in `dmesg` and for OOMKilled of the pod; else for who sent the signal.",
        general=True,
    ),
    signature(
        "loader-exited",
        r"DataLoader worker \(pid \d+\) (?:exited unexpectedly with exit code|is killed by signal: "
        r"Aborted)",
        Blame.CODE,
        "A data loader worker ended itself, with a status or SIGABRT.",
        "Look for sys.exit or os._exit in the data set or a library of it; num_workers=0 shows the "
        "traceback.",
    ),
    signature(
        "loader-terminated",
        r"DataLoader worker \(pid \d+\) is killed by signal: (?:Terminated|Interrupt|Hangup)",
        Blame.CONSEQUENCE,
        "A data loader worker was asked to end: by a scheduler, a person, or as its rank was "
        "stopped.",
        "Look at events of the pod or the job of the scheduler at that time, and at other ranks.",
    ),
    signature(
        "loader-timeout",
        r"DataLoader timed out after [\d.]+ seconds",
        Blame.STORAGE,
        "No batch came from the data loader's workers within its timeout.",
        "Look at the storage that the data set reads, and for a lock that was held when workers "
        "were forked; num_workers=0 shows where it stands. Raise timeout= if batches may take as "
        "long.",
    ),
    signature(
        "bus-error",
        r"(?:^|: +\d+ )Bus error|^Fatal Python error: Bus error|\bSIGBUS\b|\(exitcode: -7\)|"
        r"return code = -7\b",
        Blame.CONFIGURATION,
        "Memory that is backed by a file could not be provided: mostly /dev/shm is full, else a "
        "mapped file was cut or its disk failed.",
        "Set resources.shm larger; check `df /dev/shm` and the disk of memory-mapped data.",
    ),
    signature(
        "segmentation-fault",
        r"(?:^|: +\d+ )Segmentation fault|Fatal Python error: Segmentation fault|\bSIGSEGV\b|"
        r"killed by signal: Segmentation fault|\(exitcode: -11\)|return code = -11\b",
        Blame.CODE,
        "Native code accessed memory that is not its own.",
        "Run with PYTHONFAULTHANDLER=1 for the Python line; suspect extensions that were built for "
        "another version. If it only ever happens on one machine, test its memory.",
    ),
    signature(
        "illegal-instruction",
        r"(?:^|: +\d+ )Illegal instruction|\bSIGILL\b",
        Blame.ENVIRONMENT,
        "The program uses instructions that this processor does not have.",
        "Install builds for this processor (AVX2, AVX-512 may be missing), or use other machines.",
    ),
    signature(
        "no-temporary-folder",
        r"No usable temporary directory found",
        Blame.STORAGE,
        "No folder for temporary files can be written: the file system is full, or read-only, or "
        "the folder is missing.",
        "`df -h /tmp`; in a pod with readOnlyRootFilesystem mount a volume at /tmp; else set "
        "TMPDIR to a folder that can be written.",
    ),
    signature(
        "no-space",
        r"\[Errno 28\]|No space left on device",
        Blame.STORAGE,
        "A file system is full.",
        "`df -h` and `df -i` show which one; /tmp, /dev/shm and checkpoint folders are usual. "
        "Keep fewer checkpoints (checkpoints.*.keep).",
    ),
    signature(
        "disk-quota",
        r"\[Errno 122\]|Disk quota exceeded",
        Blame.STORAGE,
        "The quota of the user or project is used up.",
        "Remove old checkpoints, or ask for more.",
    ),
    signature(
        "read-only-file-system",
        r"\[Errno 30\]|Read-only file system",
        Blame.STORAGE,
        "The file system cannot be written: by configuration, or because its disk failed.",
        "Check the mount (readOnly, readOnlyRootFilesystem); `dmesg` says whether the kernel "
        "remounted it after an error.",
    ),
    signature(
        "stale-file-handle",
        r"\[Errno 116\]|Stale (?:NFS )?file handle",
        Blame.STORAGE,
        "A file on a network file system was replaced or its server restarted.",
        "Restart the process; do not replace files of data sets while they are read.",
    ),
    signature(
        "input-output-error",
        r"\[Errno 5\]|Input/output error",
        Blame.STORAGE,
        "A disk or a network file system could not read or write.",
        "Look at `dmesg` and at the storage service; if it is a local disk, replace it.",
    ),
    signature(
        "open-files-exhausted",
        r"\[Errno 24\]|Too many open files|received \d+ items of ancdata",
        Blame.CONFIGURATION,
        "The limit of open files of the process is reached.",
        "Raise `ulimit -n`; torch.multiprocessing.set_sharing_strategy('file_system') needs fewer.",
    ),
    signature(
        "file-lock",
        r"unable to lock file|\[Errno 37\]|No locks available|OperationalError: database is locked",
        Blame.STORAGE,
        "A file could not be locked: another process has it open for writing, or its file system "
        "has no locks.",
        "Let one rank write and others read only; on NFS and Lustre set "
        "HDF5_USE_FILE_LOCKING=FALSE for HDF5 files, and keep SQLite files on a local disk.",
    ),
    signature(
        "nfs-file-busy",
        r"Device or resource busy: '\S*\.nfs",
        Blame.CONSEQUENCE,
        "A process that ended could not remove a temporary file that lies on NFS and is still "
        "open: harmless by itself.",
        "Set TMPDIR to a local folder; if training ended, look for another error.",
    ),
    signature(
        "too-many-threads",
        r"can't start new thread|pthread_create failed|Resource temporarily unavailable",
        Blame.CONFIGURATION,
        "No more threads or processes may be started.",
        "Raise the limit of processes (`ulimit -u`, pids of the cgroup), set OMP_NUM_THREADS, and "
        "use fewer num_workers.",
    ),
    signature(
        "memory-allocation",
        r"\[Errno 12\]|DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|"
        r"^MemoryError|MemoryError: Unable to allocate",
        Blame.CONFIGURATION,
        "The host has not enough memory for an allocation.",
        "Raise the memory of the container, read less at once, use fewer num_workers.",
    ),
    signature(
        "permission-denied",
        r"\[Errno 13\]|PermissionError:",
        Blame.CONFIGURATION,
        "The user of the process may not use a file or folder.",
        "Check owner and mode, runAsUser and fsGroup of the pod, and whether a cache folder "
        "(HF_HOME, TORCH_HOME) belongs to another user.",
    ),
    signature(
        "file-not-found",
        r"FileNotFoundError|\[Errno 2\] No such file|Parent directory .* does not exist",
        Blame.CONFIGURATION,
        "A file or folder that the script names does not exist on this node.",
        "Check the working directory and the mounts of every node, not only of the first.",
    ),
    signature(
        "file-exists",
        r"FileExistsError: |\[Errno 39\]",
        Blame.CODE,
        "A file or folder exists already, or is not empty: mostly several ranks make or remove it.",
        "Let one rank do it, then a barrier; os.makedirs(..., exist_ok=True). If it is left over "
        "from the attempt before, let the script continue from it.",
    ),
    signature(
        "clock-skew",
        r"certificate is not yet valid|RequestTimeTooSkewed|between the request time and the",
        Blame.CONFIGURATION,
        "The clock of the machine, or that of the service, is wrong.",
        "`timedatectl` on the node shows whether it is synchronized: start chrony or ntpd. If all "
        "nodes report this, look at the service's clock.",
    ),
    signature(
        "mount-lost",
        r"\[Errno 107\]|Transport endpoint is not connected",
        Blame.STORAGE,
        "The process behind a mounted file system (FUSE, such as gcsfuse or s3fs) has died.",
        "Mount it again, and give its process more memory if the kernel killed it.",
    ),
    signature(
        "lustre-client-evicted",
        r"Cannot send after transport endpoint shutdown|\[Errno 108\]",
        Blame.STORAGE,
        "A server of the network file system (Lustre) has cut this client off.",
        "Look for `evicted` in `dmesg` of the machine: the client did not answer the server in "
        "time, by load or network errors. Processes with open files must be started again.",
    ),
    signature(
        "name-resolution",
        r"Temporary failure in name resolution|Name or service not known|"
        r"nodename nor servname provided|getaddrinfo failed",
        Blame.NETWORK,
        "A host name could not be resolved.",
        "Right after a pod has started its name may not be known yet: wait and try again. Else "
        "check the name, the headless Service and the cluster's DNS.",
    ),
    signature(
        "no-route",
        r"No route to host|\[Errno 113\]|Network is unreachable|\[Errno 101\]",
        Blame.NETWORK,
        "There is no route to the other machine.",
        "Check NetworkPolicies, security groups and whether that machine is up.",
    ),
    signature(
        "connection-reset",
        r"Connection reset by peer|\[Errno 104\]|\[Errno 32\]|RuntimeError: Broken pipe",
        Blame.CONSEQUENCE,
        "The other end of a connection has closed it.",
        "If the other end is a rank, look at why that one failed; if it is a service, it restarted "
        "or refuses so many connections.",
    ),
    signature(
        "connection-refused",
        r"Connection refused|\[Errno 111\]",
        Blame.NETWORK,
        "Nothing listens on the port that the process connects to.",
        "Check host and port, and whether that service has started.",
    ),
    signature(
        "network-timeout",
        r"(?:ReadTimeout|ConnectTimeout|ConnectTimeoutError|ReadTimeoutError|TimeoutError)(?::|$)|"
        r"Read timed out|\[Errno 110\]",
        Blame.NETWORK,
        "A service did not answer in time.",
        "Check that it can be reached from the node, and how loaded it is; many ranks that ask at "
        "once slow it down.",
    ),
    signature(
        "connection-cut",
        r"Remote end closed connection|EOF occurred in violation of protocol|"
        r"IncompleteRead\(|ServerDisconnectedError|ClientPayloadError|"
        r"Connection was closed before we received|"
        r"RemoteProtocolError: (?:Server disconnected|peer closed connection)",
        Blame.NETWORK,
        "A service closed the connection before its answer was complete.",
        "It restarted, or a proxy between cut it: try again, and read in smaller parts.",
    ),
    signature(
        "certificate",
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        Blame.CONFIGURATION,
        "A certificate could not be verified.",
        "Install the CA of your proxy into the image and set SSL_CERT_FILE or REQUESTS_CA_BUNDLE.",
    ),
    signature(
        "service-unreachable",
        r"Could not connect to the endpoint URL|Cannot connect to host|"
        r"Max retries exceeded with url",
        Blame.NETWORK,
        "A service could not be reached.",
        "Check its name and port, the proxy, and NetworkPolicies of the node.",
        general=True,
    ),
)
