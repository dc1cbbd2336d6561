//! The functions of NVIDIA's libraries that are called through bindings. These look each up when it is first called and end the program
//! where there is none, so `library` asks for all of them beforehand.

/// The functions of the driver (`driver`).
pub(super) const DRIVER: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
];

/// The functions of the compiler (`compile`).
pub(super) const NVRTC: &[&str] = &[
    "nvrtcVersion",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
];

/// The functions of the library of products (`product`).
pub(super) const CUBLAS_LT: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoCapGetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
];

#[cfg(test)]
mod tests {
    use super::{CUBLAS_LT, DRIVER, NVRTC};

    /// Which function of a library each function of the bindings calls (cudarc, `result.rs` of each library).
    const CALLS: &[(&str, &str)] = &[
        ("result::init", "cuInit"),
        ("result::ctx::set_current", "cuCtxSetCurrent"),
        ("result::device::get", "cuDeviceGet"),
        ("result::device::get_attribute", "cuDeviceGetAttribute"),
        ("result::device::get_count", "cuDeviceGetCount"),
        ("result::device::get_name", "cuDeviceGetName"),
        ("result::device::total_mem", "cuDeviceTotalMem_v2"),
        ("result::event::create", "cuEventCreate"),
        ("result::event::destroy", "cuEventDestroy_v2"),
        ("result::event::record", "cuEventRecord"),
        ("result::free_host", "cuMemFreeHost"),
        ("result::free_sync", "cuMemFree_v2"),
        ("result::function::set_function_attribute", "cuFuncSetAttribute"),
        ("result::graph::destroy", "cuGraphDestroy"),
        ("result::graph::exec_destroy", "cuGraphExecDestroy"),
        ("result::graph::instantiate", "cuGraphInstantiateWithFlags"),
        ("result::graph::launch", "cuGraphLaunch"),
        ("result::launch_kernel", "cuLaunchKernel"),
        ("result::malloc_host", "cuMemHostAlloc"),
        ("result::malloc_sync", "cuMemAlloc_v2"),
        ("result::mem_get_info", "cuMemGetInfo_v2"),
        ("result::memcpy_dtod_async", "cuMemcpyDtoDAsync_v2"),
        ("result::memcpy_dtoh_async", "cuMemcpyDtoHAsync_v2"),
        ("result::memcpy_dtoh_sync", "cuMemcpyDtoH_v2"),
        ("result::memcpy_htod_async", "cuMemcpyHtoDAsync_v2"),
        ("result::memcpy_htod_sync", "cuMemcpyHtoD_v2"),
        ("result::memset_d8_async", "cuMemsetD8Async"),
        ("result::memset_d8_sync", "cuMemsetD8_v2"),
        ("result::module::get_function", "cuModuleGetFunction"),
        ("result::module::load_data", "cuModuleLoadData"),
        ("result::primary_ctx::retain", "cuDevicePrimaryCtxRetain"),
        ("result::stream::begin_capture", "cuStreamBeginCapture_v2"),
        ("result::stream::create", "cuStreamCreate"),
        ("result::stream::destroy", "cuStreamDestroy_v2"),
        ("result::stream::end_capture", "cuStreamEndCapture"),
        ("result::stream::synchronize", "cuStreamSynchronize"),
        ("result::stream::wait_event", "cuStreamWaitEvent"),
        ("result::create_program", "nvrtcCreateProgram"),
        ("result::compile_program", "nvrtcCompileProgram"),
        ("result::destroy_program", "nvrtcDestroyProgram"),
        ("result::get_program_log", "nvrtcGetProgramLog"),
        ("result::create_handle", "cublasLtCreate"),
        ("result::destroy_handle", "cublasLtDestroy"),
        ("result::create_matmul_desc", "cublasLtMatmulDescCreate"),
        ("result::destroy_matmul_desc", "cublasLtMatmulDescDestroy"),
        ("result::set_matmul_desc_attribute", "cublasLtMatmulDescSetAttribute"),
        ("result::create_matmul_pref", "cublasLtMatmulPreferenceCreate"),
        ("result::destroy_matmul_pref", "cublasLtMatmulPreferenceDestroy"),
        ("result::set_matmul_pref_attribute", "cublasLtMatmulPreferenceSetAttribute"),
        ("result::create_matrix_layout", "cublasLtMatrixLayoutCreate"),
        ("result::destroy_matrix_layout", "cublasLtMatrixLayoutDestroy"),
        ("result::set_matrix_layout_attribute", "cublasLtMatrixLayoutSetAttribute"),
        ("result::get_matmul_algo_heuristic", "cublasLtMatmulAlgoGetHeuristic"),
        ("result::matmul", "cublasLtMatmul"),
    ];

    /// A call whose function is not in the list would end the program with a library that lacks it.
    #[test]
    fn every_function_that_is_called_is_looked_for() {
        let files = [
            (concat!(include_str!("driver.rs"), include_str!("mark.rs")), DRIVER),
            (include_str!("compile.rs"), NVRTC),
            (include_str!("product.rs"), CUBLAS_LT),
        ];
        for (code, functions) in files {
            let called = calls(code);
            assert!(called.len() > 5, "{called:?}");
            for path in called {
                let of_bindings = CALLS.iter().find(|(name, _)| *name == path);
                let function = of_bindings.map(|(_, function)| *function);
                let function = function.or_else(|| path.strip_prefix("sys::"));
                let function = function.unwrap_or_else(|| panic!("`{path}` is not in the list"));
                assert!(functions.contains(&function), "{function} is not looked for");
            }
        }
    }

    /// The functions of bindings that are called in a file, by their paths.
    fn calls(code: &str) -> Vec<&str> {
        let is_path = |c: char| c.is_alphanumeric() || "_:".contains(c);
        let starts = code.match_indices("result::").chain(code.match_indices("sys::"));
        let paths = starts.filter_map(|(at, _)| {
            let (path, after) = code[at..].split_at(code[at..].find(|c| !is_path(c))?);
            let last = path.rsplit("::").next()?;
            (after.starts_with('(') && last.starts_with(char::is_lowercase)).then_some(path)
        });
        paths.collect()
    }
}
