//! The library as programs open it: by the names of NVIDIA's libraries, with all symbols under them.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::ffi::CString;

/// Functions of cuBLASLt.
const CUBLASLT: &str = "cublasLtCreate cublasLtDestroy cublasLtGetVersion cublasLtGetCudartVersion cublasLtGetProperty \
    cublasLtGetStatusName cublasLtGetStatusString cublasLtLoggerSetLevel cublasLtMatmul cublasLtMatmulAlgoGetHeuristic \
    cublasLtMatmulAlgoCapGetAttribute \
    cublasLtMatmulDescCreate cublasLtMatmulDescDestroy cublasLtMatmulDescInit_internal \
    cublasLtMatmulDescSetAttribute cublasLtMatmulDescGetAttribute cublasLtMatrixLayoutCreate \
    cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutInit_internal cublasLtMatrixLayoutSetAttribute \
    cublasLtMatrixLayoutGetAttribute cublasLtMatmulPreferenceCreate cublasLtMatmulPreferenceDestroy \
    cublasLtMatmulPreferenceInit_internal cublasLtMatmulPreferenceSetAttribute \
    cublasLtMatmulPreferenceGetAttribute";

/// Functions of NCCL.
const NCCL: &str = "ncclGetVersion ncclGetUniqueId ncclCommInitRank ncclCommInitRankConfig ncclCommInitAll \
    ncclCommSplit ncclCommCount ncclCommUserRank ncclCommCuDevice ncclCommFinalize ncclCommDestroy ncclCommAbort \
    ncclCommGetAsyncError ncclGetErrorString ncclGetLastError ncclGroupStart ncclGroupEnd ncclAllReduce \
    ncclReduceScatter ncclAllGather ncclBroadcast ncclBcast ncclReduce ncclAlltoAll ncclGather ncclScatter ncclSend \
    ncclRecv";

#[test]
fn the_names_of_cublaslt_and_nccl_lead_to_their_functions() {
    let folder = tempfile::tempdir().expect("a folder");
    if gpu_double::install(folder.path()).is_none() {
        return;
    }
    for (name, functions) in [("libcublasLt.so.13", CUBLASLT), ("libnccl.so.2", NCCL)] {
        let path = folder.path().join(name).into_os_string().into_encoded_bytes();
        let path = CString::new(path).expect("a path");
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{name}");
        for function in functions.split_whitespace() {
            let symbol = CString::new(function).expect("a name");
            let address = unsafe { libc::dlsym(library, symbol.as_ptr()) };
            assert!(!address.is_null(), "{name} has no {function}");
        }
    }
}
