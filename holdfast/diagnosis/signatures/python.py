"""Exceptions of Python and PyTorch that are the script's, its data's or its packages'."""

from holdfast.diagnosis.signatures.signature import Blame, signature

PYTHON = (
    signature(
        "module-missing",
        r"ModuleNotFoundError: No module named|requires the following packages that were not found",
        Blame.ENVIRONMENT,
        "A package is not installed where the script runs, or a folder is not on the path.",
        "Install it into the image; for modules of your own run from their folder, or set "
        "PYTHONPATH.",
    ),
    signature(
        "command-missing",
        r"^\S+: (?:line \d+: )?\S+: command not found|executable file not found in \$PATH",
        Blame.ENVIRONMENT,
        "A program is not installed where the script runs, or is not on the PATH.",
        "Install it into the image, or call it by its full path; a virtual environment must be "
        "activated in the script, as a login shell's settings are not used.",
    ),
    signature(
        "argument-unknown",
        r"error: (?:unrecognized arguments|the following arguments are required): |are not used by "
        r"the HfArgumentParser",
        Blame.CONFIGURATION,
        "The script was given an argument that it does not know, or not one that it needs.",
        "Compare with its --help. --local-rank comes from torch.distributed.launch: start with "
        "torchrun or `holdfast run`, and read LOCAL_RANK from the environment.",
    ),
    signature(
        "library-too-old",
        r"version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",
        Blame.ENVIRONMENT,
        "A binary was built for a newer system than this one.",
        "Use a newer base image, or install a wheel for this one (manylinux tag).",
    ),
    signature(
        "shared-library-missing",
        r"(?:ImportError|OSError|error while loading shared libraries): \S*\.so[.\d]*: cannot open "
        r"shared object file",
        Blame.ENVIRONMENT,
        "A library that an extension was linked with is not found.",
        "libcudart, libcublas, libcudnn: install the extension in a build for the CUDA of this "
        "PyTorch (torch.version.cuda), or that CUDA; others: the package of the system that has "
        "the file. Import torch first, or set LD_LIBRARY_PATH.",
    ),
    signature(
        "undefined-symbol",
        r"undefined symbol: ",
        Blame.ENVIRONMENT,
        "An extension was built for another version of PyTorch or CUDA than is installed.",
        "Reinstall the extension for exactly this version of PyTorch, without a cached wheel.",
    ),
    signature(
        "import-name-missing",
        r"ImportError: cannot import name",
        Blame.ENVIRONMENT,
        "A package has another version than the script expects, or a file of yours hides it.",
        "Compare versions with the ones the script was written for; look for a file of yours with "
        "the name of the package.",
    ),
    signature(
        "package-changed",
        r"AttributeError: module '\S+' has no attribute '|"
        r"TypeError: .*got an unexpected keyword argument '",
        Blame.ENVIRONMENT,
        "The script uses something that this version of a package, or a module of yours, does not "
        "have.",
        "Install the version that the script was written for, or follow the package's notes on "
        "what was renamed or removed; else look for a misspelt name.",
    ),
    signature(
        "numpy-abi",
        r"numpy\.dtype size changed|compiled using NumPy 1\.x cannot be run in",
        Blame.ENVIRONMENT,
        "An extension was built for another major version of NumPy.",
        "Pin numpy<2, or upgrade the extension.",
    ),
    signature(
        "shape-mismatch",
        r"mat1 and mat2 shapes cannot be multiplied|The size of tensor a \(\d+\) must match|"
        r"shape '\[.*\]' is invalid for input of size|Given groups=\d+, weight of size|"
        r"Sizes of tensors must match except in dimension|The expanded size of the tensor \(\d+\) "
        r"must match|Expected input batch_size \(\d+\) to match|Target size \(.*\) must be the "
        r"same",
        Blame.CODE,
        "Tensors have shapes that do not fit together.",
        "Print the shapes at the line of the traceback; a last batch that is smaller or samples of "
        "another size are usual (drop_last=True).",
    ),
    signature(
        "samples-differ",
        r"stack expects each tensor to be equal size|Trying to resize storage that is not|"
        r"expected sequence of length \d+ at dim \d+ \(got",
        Blame.DATA,
        "Samples of one batch have different sizes.",
        "Pad or crop them, or give the DataLoader a collate_fn.",
    ),
    signature(
        "data-set-empty",
        r"num_samples should be a positive integer value, but got num_samples=0",
        Blame.DATA,
        "The data set has no samples.",
        "Check its path and pattern on this node, and whether a filter, or a split over more ranks "
        "than there are files, leaves nothing.",
    ),
    signature(
        "data-file-damaged",
        r"Parquet magic bytes not found|Parquet file size is \d+ bytes|image file is truncated|"
        r"cannot identify image file|BadZipFile: |tarfile\.ReadError: |truncated file: eof = |"
        r"Compressed file ended before the end-of-stream|DataLossError: |corrupted record at \d|"
        r"Consistency check failed: file should be of size",
        Blame.DATA,
        "A data file is incomplete, damaged, or not of the format that its name says.",
        "Remove the file, or its folder in the cache, and fetch it again, by one process of the "
        "node only; compare its size or checksum with the source. A small file may be an error "
        "page or a pointer of Git LFS.",
    ),
    signature(
        "batch-of-one",
        r"Expected more than 1 value per channel when training",
        Blame.CODE,
        "A BatchNorm layer got a batch of one sample.",
        "Use drop_last=True, a larger batch per rank, or GroupNorm; call model.eval() to evaluate.",
    ),
    signature(
        "device-mismatch",
        r"Expected all tensors to be on the same device|is not on the expected device|"
        r"to have the same device as tensor for argument|must be on the current device|"
        r"Input type \(torch\.cuda\.\w+\) and (?:weight|bias) type \(torch\.(?!cuda)|"
        r"must have its parameters and buffers on device",
        Blame.CODE,
        "Tensors of one operation are on different devices.",
        "Move inputs with .to(device), and register constant tensors as buffers.",
    ),
    signature(
        "dtensor-mixed",
        r"got mixed torch\.Tensor and DTensor",
        Blame.CODE,
        "One operation got sharded parameters (DTensor, of FSDP2 or tensor parallelism) and plain "
        "tensors.",
        "Convert the plain one with distribute_tensor or DTensor.from_local, or take .full_tensor()"
        " of the other. Look for parameters used outside the forward of the wrapped module, and "
        "for buffers or adapters that were added after fully_shard.",
    ),
    signature(
        "fsdp-mixed-parameters",
        r"Must flatten tensors with (?:the same|uniform)|`FlatParameter` requires uniform",
        Blame.CODE,
        "FSDP joins the parameters of a module, and they differ in type or in requires_grad.",
        "Cast the model to one dtype before wrapping (LoRA and quantization leave fp32 parts), or "
        "wrap such parts on their own; use_orig_params=True allows a mixed requires_grad. FSDP2 "
        "(fully_shard) has no such limit.",
    ),
    signature(
        "fp16-parameters",
        r"Attempting to unscale FP16 gradients",
        Blame.CODE,
        "The parameters themselves are fp16, which a GradScaler refuses to train.",
        "Keep what is trained in fp32 and let autocast compute in fp16: load the model in fp32, or "
        "cast its trainable parameters (LoRA) to fp32; or use bf16 without a scaler.",
    ),
    signature(
        "activation-checkpoint-differs",
        r"Recomputed values for the following tensors have different metadata|"
        r"A different number of tensors was saved during the original forward",
        Blame.CODE,
        "Activation checkpointing ran a forward pass again, and it did something else than the "
        "first time.",
        "Look for state that changes between the two: caches (use_cache=False), routing of "
        "experts, random numbers, autocast or compiled regions. checkpoint(..., debug=True) shows "
        "the first operation that differs; ZeRO-3 may need use_reentrant=True.",
    ),
    signature(
        "dtype-mismatch",
        r"expected scalar type \w+ but found|source and destination dtypes match|"
        r"(?:must|to) have the same dtype|"
        r"\" not implemented for '\w+'|"
        r"Input type \(.*\) and (?:weight|bias) type \(.*\) should be the same",
        Blame.CODE,
        "Tensors of one operation have different types.",
        "Run the forward pass under autocast, or cast inputs to the type of the model.",
    ),
    signature(
        "state-dict-mismatch",
        r"Error\(s\) in loading state_dict for|size mismatch for .*: copying a param|"
        r"loaded state dict (?:has a different number of|contains a) parameter group",
        Blame.CONFIGURATION,
        "The checkpoint is of a model with other names or sizes.",
        "Use the arguments that the checkpoint was made with; a prefix `module.` or `_orig_mod.` "
        "is that of DistributedDataParallel or torch.compile.",
    ),
    signature(
        "distributed-checkpoint-mismatch",
        r"Size mismatch between saved torch\.Size|Missing key in checkpoint state_dict",
        Blame.CONFIGURATION,
        "A distributed checkpoint (DCP) is of a model or optimizer with other names or sizes.",
        "Use the arguments that it was made with. Flat sizes come from FSDP1 parameters: load with "
        "get_state_dict of the same wrapping. For keys that are new, load with "
        "DefaultLoadPlanner(allow_partial_load=True).",
    ),
    signature(
        "distributed-checkpoint-failed",
        r"CheckpointException ranks:",
        Blame.STORAGE,
        "A distributed checkpoint (DCP) could not be saved or loaded; the ranks that failed are "
        "listed.",
        "The exception of each rank below says why.",
        general=True,
    ),
    signature(
        "checkpoint-file-damaged",
        r"PytorchStreamReader failed|invalid header or archive is corrupted|HeaderTooLarge|"
        r"MetadataIncompleteBuffer|InvalidHeaderDeserialization|pickle data was truncated|"
        r"SafetensorError: Error while deserializing header|unexpected EOF, expected \d+ more|"
        r"seems not fully written|holdfast: .* is incomplete \([\d,]+ bytes\)|"
        r"UnpicklingError: invalid load key|storage has wrong size: expected|"
        r"EOFError: Ran out of input|^\s*Unsupported operand \d+$",
        Blame.STORAGE,
        "A checkpoint file is incomplete, damaged, or none: such as a pointer of Git LFS.",
        "Move it away and go back to the one before; write to a temporary name and rename, so that "
        "a process that dies leaves no half file (docs/guides/trainers.md).",
    ),
    signature(
        "weights-only",
        r"Weights only load failed\. This file can|"
        r"WeightsUnpickler error: Unsupported (?:global|class)",
        Blame.ENVIRONMENT,
        "torch.load refuses objects other than tensors (since PyTorch 2.6).",
        "If you trust the file: weights_only=False, or torch.serialization.add_safe_globals.",
    ),
    signature(
        "in-place-gradient",
        r"modified by an inplace operation|requires grad is being used in an in-place operation",
        Blame.CODE,
        "A tensor that the backward pass needs was changed in place.",
        "Find it with torch.autograd.set_detect_anomaly(True); avoid += and _-methods there.",
    ),
    signature(
        "backward-twice",
        r"Trying to backward through the graph a second time",
        Blame.CODE,
        "The graph of a step is used again in the next.",
        "Detach hidden states between steps; pass retain_graph=True only if that is meant.",
    ),
    signature(
        "no-gradient",
        r"does not require grad and does not have a grad_fn",
        Blame.CODE,
        "The loss depends on no parameter that is trained.",
        "Look for .detach(), torch.no_grad() or frozen parameters on the way to the loss.",
    ),
    signature(
        "nan-in-backward",
        r"returned nan values in its \d+th output|probability tensor contains either `inf`|"
        r"Loss is (?:nan|NaN|inf)|loss (?:is|=) ?nan",
        Blame.DATA,
        "A value became NaN or infinite.",
        "Go back to a checkpoint before it, and look at the batch; clip gradients, lower the "
        "learning rate, use bf16 instead of fp16.",
    ),
    signature(
        "loss-scale-exhausted",
        r"Current loss scale already at minimum|Minimum loss scale reached",
        Blame.DATA,
        "Every step overflows in fp16: training has diverged.",
        "Go back to an earlier checkpoint with a lower learning rate, or train in bf16.",
    ),
    signature(
        "index-out-of-range",
        r"IndexError: (?:index out of range in self|Target \d+ is out of bounds)",
        Blame.DATA,
        "A token id or a class label is larger than the model expects.",
        "Compare the tokenizer's size with the embedding's, and labels with the number of classes.",
    ),
    signature(
        "not-picklable",
        r"Can't (?:get local |pickle (?:local )?)(?:object|attribute|<)|cannot pickle '",
        Blame.CODE,
        "An object cannot be sent to another process, such as a data loader worker.",
        "Define functions at module level instead of lambdas; open files and connections in the "
        "worker.",
    ),
    signature(
        "no-main-guard",
        r"current process has finished its bootstrapping phase",
        Blame.CODE,
        "The script starts processes while it is imported by them.",
        "Put its body under `if __name__ == '__main__':`.",
    ),
    signature(
        "recursion",
        r"RecursionError: maximum recursion depth exceeded",
        Blame.CODE,
        "Functions call each other without end.",
        "The traceback shows which; deep copies and pickling of linked objects are usual.",
    ),
)
