//! Matrix products by cuBLASLt: descriptions are made when a plan is loaded, an action only multiplies. `ways` decides which of
//! the library's algorithms is taken, and what is done where the library refuses a product.
//!
//! The library stores matrices column by column. A row-major result is the transpose of a column-major one, so both factors
//! change places: out^T = b^T a^T.

use std::ffi::c_void;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::cublaslt::{result, sys};
use graphc_comm::memory::ALIGNMENT;
use graphc_ir::types::DType;
use graphc_kernels::cuda::{Activation, Epilogue, Matrix, MatrixProduct, Summed};

use super::driver::{CardBuffer, CardContext, Queue, Trouble};
use super::library::{Library, NotFound};

/// Bytes of memory that the library may work in, as many as its kernels for Hopper want.
const WORKSPACE: usize = 32 << 20;
/// The number of algorithms that the library is asked for.
const ALGORITHMS: usize = 8;

/// Why there is no library to multiply with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum MultiplierError {
    #[error(transparent)]
    NotFound(#[from] NotFound),
    #[error("cuBLASLt cannot be used: {0}")]
    Unusable(String),
}

/// The library's word for why it does not compute a product, e.g. `CUBLAS_STATUS_NOT_SUPPORTED`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<result::CublasError> for Refusal {
    fn from(error: result::CublasError) -> Self {
        Self(format!("{:?}", error.0))
    }
}

/// The library, opened for a device.
#[derive(Debug)]
pub(super) struct Multiplier(sys::cublasLtHandle_t);

// SAFETY: a handle of this library may be used from any thread.
unsafe impl Send for Multiplier {}
// SAFETY: as for `Send`.
unsafe impl Sync for Multiplier {}

impl Multiplier {
    pub(super) fn new(context: &CardContext) -> Result<Self, MultiplierError> {
        Library::CublasLt.find()?;
        context.make_current().map_err(|trouble| MultiplierError::Unusable(trouble.to_string()))?;
        let handle = result::create_handle();
        handle.map(Self).map_err(|error| MultiplierError::Unusable(format!("{:?}", error.0)))
    }

    /// Allocates memory to work in, for one stream.
    pub(super) fn allocate_workspace(context: &Arc<CardContext>) -> Result<CardBuffer, Trouble> {
        CardBuffer::new(context, WORKSPACE)
    }

    /// Describes a product, and asks how it may be computed.
    pub(super) fn describe_product(&self, product: &MatrixProduct) -> Result<Described, Refusal> {
        Ok(Described::new(self, product)?)
    }

    /// Begins the products of a row by an algorithm on a stream, one after the other.
    pub(super) fn multiply(
        &self,
        (described, algorithm): (&Described, usize),
        bases: ProductAddresses,
        queue: &Queue,
        workspace: &CardBuffer,
    ) -> Result<(), Refusal> {
        if let (Some(vector), true) = (bases.vector, described.has_vector) {
            described.product.set_vector(vector)?;
        }
        if let (Some(kept), true) = (bases.kept, described.has_kept) {
            described.product.set_kept(kept)?;
        }
        let algorithm = &described.algorithms[algorithm];
        described.starts.iter().try_for_each(|&[a, b, out]| {
            let [a, b, out] = [bases.a + a as u64, bases.b + b as u64, bases.out + out as u64];
            let places = ProductAddresses { a, b, out, ..bases };
            self.multiply_one((described, algorithm), places, queue, workspace)
        })
    }

    fn multiply_one(
        &self,
        (described, algorithm): (&Described, &sys::cublasLtMatmulAlgo_t),
        ProductAddresses { a, b, out, added, .. }: ProductAddresses,
        queue: &Queue,
        workspace: &CardBuffer,
    ) -> Result<(), Refusal> {
        let (alpha, beta) = (1.0f32, if added.is_some() { 1.0f32 } else { 0.0 });
        let number = |number: &f32| std::ptr::from_ref(number).cast::<c_void>();
        // SAFETY: the descriptions are kept; the addresses are of registers of the extents that they say; both numbers are read
        // before the call returns.
        let done = unsafe {
            result::matmul(
                self.0,
                described.product.0,
                number(&alpha),
                number(&beta),
                b as *const c_void,
                described.b.0,
                a as *const c_void,
                described.a.0,
                added.unwrap_or(out) as *const c_void,
                described.out.0,
                out as *mut c_void,
                described.out.0,
                algorithm,
                workspace.address(0, WORKSPACE) as *mut c_void,
                WORKSPACE,
                queue.raw().cast(),
            )
        };
        Ok(done?)
    }
}

/// The addresses of a product's matrices.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProductAddresses {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) out: u64,
    /// A summand like the result.
    pub(super) added: Option<u64>,
    /// A summand for each column, or sums.
    pub(super) vector: Option<u64>,
    /// The matrix that a function is taken of.
    pub(super) kept: Option<u64>,
}

impl Drop for Multiplier {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

/// A product, described.
pub(super) struct Described {
    product: Description,
    a: MatrixLayout,
    b: MatrixLayout,
    out: MatrixLayout,
    /// The algorithms that compute it, at least one: what the library takes for the fastest first.
    algorithms: Vec<sys::cublasLtMatmulAlgo_t>,
    /// The offsets of each row of products in both factors and the result, in bytes.
    starts: Vec<[usize; 3]>,
    /// Whether there is a summand for each column, or sums.
    has_vector: bool,
    /// Whether there is a matrix that a function is taken of.
    has_kept: bool,
}

// SAFETY: descriptions are plain data that nothing changes after they were made.
unsafe impl Send for Described {}

impl Described {
    fn new(multiplier: &Multiplier, product: &MatrixProduct) -> Result<Self, result::CublasError> {
        let (dtype, made) = (product.operands.dtype, product.operands.made);
        let description = Description::new([product.b.by_columns, product.a.by_columns])?;
        description.end_with(&product.epilogue, product.columns)?;
        let batch = product.batch;
        let (rows, inner, columns) = (product.rows, product.inner, product.columns);
        let a = MatrixLayout::from_matrix(dtype, &product.a, [rows, inner], batch)?;
        let b = MatrixLayout::from_matrix(dtype, &product.b, [inner, columns], batch)?;
        let out = MatrixLayout::from_matrix(made, &product.out, [rows, columns], batch)?;
        let preference = Preference::new(matrix_alignments(product), made)?;
        let layouts = [&b, &a, &out, &out].map(|layout| layout.0);
        let mut algorithms = find_algorithms(multiplier, &description, layouts, &preference)?;
        if product.epilogue.added.is_some() {
            algorithms = prefer_out_of_place(algorithms);
        }
        let sizes = element_sizes(product);
        let bytes = |start: &[usize; 3]| std::array::from_fn(|part| start[part] * sizes[part]);
        let starts = product.starts.iter().map(bytes).collect();
        let epilogue = &product.epilogue;
        let has_vector = epilogue.vector().is_some();
        let has_kept = epilogue.kept.is_some();
        Ok(Self { product: description, a, b, out, algorithms, starts, has_vector, has_kept })
    }

    /// Returns the number of algorithms.
    pub(super) fn count_algorithms(&self) -> usize {
        self.algorithms.len()
    }
}

/// Finds the algorithms that the library proposes for a product whose matrices have these layouts.
fn find_algorithms(
    multiplier: &Multiplier,
    description: &Description,
    [a, b, c, d]: [sys::cublasLtMatrixLayout_t; 4],
    preference: &Preference,
) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, result::CublasError> {
    const NONE: MaybeUninit<sys::cublasLtMatmulHeuristicResult_t> = MaybeUninit::zeroed();
    let (mut found, mut count) = ([NONE; ALGORITHMS], 0);
    // SAFETY: all descriptions are there; there are as many places as are asked for.
    unsafe {
        sys::cublasLtMatmulAlgoGetHeuristic(
            multiplier.0,
            description.0,
            a,
            b,
            c,
            d,
            preference.0,
            ALGORITHMS as i32,
            found[0].as_mut_ptr(),
            &mut count,
        )
        .result()?;
    }
    let good = |found: &MaybeUninit<sys::cublasLtMatmulHeuristicResult_t>| {
        // SAFETY: the library has filled it, or it is zeros, which is a value too.
        let found = unsafe { found.assume_init_ref() };
        let fits = found.workspaceSize <= WORKSPACE;
        (fits && found.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS).then_some(found.algo)
    };
    let algorithms: Vec<_> =
        found.iter().take(usize::try_from(count).unwrap_or(0)).filter_map(good).collect();
    match algorithms.is_empty() {
        true => Err(result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)),
        false => Ok(algorithms),
    }
}

/// Keeps those algorithms for a product with a summand that may write the result beside it as well as over it, if any does: so that
/// a plan takes the same ones either way.
fn prefer_out_of_place(all: Vec<sys::cublasLtMatmulAlgo_t>) -> Vec<sys::cublasLtMatmulAlgo_t> {
    let found: Vec<_> = all.iter().copied().filter(may_be_apart).collect();
    if found.is_empty() { all } else { found }
}

fn may_be_apart(algorithm: &sys::cublasLtMatmulAlgo_t) -> bool {
    let attribute =
        sys::cublasLtMatmulAlgoCapAttributes_t::CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT;
    let (mut may, mut written) = (0i32, 0);
    let place = std::ptr::from_mut(&mut may).cast();
    // SAFETY: the algorithm is one that the library gave; there is room for the attribute, and for its size.
    let told = unsafe {
        sys::cublasLtMatmulAlgoCapGetAttribute(algorithm, attribute, place, 4, &mut written)
    };
    told != sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS || may != 0
}

/// The library's description of a product.
struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    /// Describes a product of two factors; `transposed`: whether each of them, as the library sees them, is transposed.
    fn new(transposed: [bool; 2]) -> Result<Self, result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        // Products of f32 are products of f32: what is faster and less exact must be asked for.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let description = Self(result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?);
        let attributes =
            [Attribute::CUBLASLT_MATMUL_DESC_TRANSA, Attribute::CUBLASLT_MATMUL_DESC_TRANSB];
        for (attribute, transposed) in attributes.into_iter().zip(transposed) {
            description.set_attribute(attribute, &i32::from(transposed))?;
        }
        Ok(description)
    }

    /// Sets the epilogue of sums. An algorithm is chosen for it, and for places that begin where registers do.
    fn end_with(&self, epilogue: &Epilogue, columns: usize) -> Result<(), result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let end = epilogue_code(epilogue)?;
        self.set_attribute(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &end)?;
        if epilogue.vector().is_some() {
            self.set_vector(ALIGNMENT as u64)?;
        }
        if epilogue.kept.is_some() {
            let leading = columns as i64;
            self.set_attribute(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &leading)?;
            self.set_kept(ALIGNMENT as u64)?;
        }
        Ok(())
    }

    /// Sets the address of the summand for each column, or of the sums.
    fn set_vector(&self, address: u64) -> Result<(), result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        self.set_attribute(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address)
    }

    /// Sets the address of the matrix that a function is taken of.
    fn set_kept(&self, address: u64) -> Result<(), result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        self.set_attribute(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &address)
    }

    fn set_attribute<T: Copy>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), result::CublasError> {
        let place = std::ptr::from_ref(value).cast();
        // SAFETY: the value is read before the call returns; the library refuses one whose size is not the attribute's.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, place, size_of::<T>()) }
    }
}

/// Returns the library's number of an epilogue. To it rows of the result are columns, and the second factor is the
/// first.
fn epilogue_code(epilogue: &Epilogue) -> Result<sys::cublasLtEpilogue_t, result::CublasError> {
    use Activation::{GeluTanh, GeluTanhGrad, None as Plain, Relu};
    use sys::cublasLtEpilogue_t as End;
    let Epilogue { activation, bias, kept, sums, .. } = epilogue;
    let summed = sums.map(|(summed, _)| summed);
    Ok(match (activation, bias.is_some(), kept.is_some(), summed) {
        (Plain, false, false, None) => End::CUBLASLT_EPILOGUE_DEFAULT,
        (Plain, true, false, None) => End::CUBLASLT_EPILOGUE_BIAS,
        (Plain, false, false, Some(Summed::Second)) => End::CUBLASLT_EPILOGUE_BGRADA,
        (Plain, false, false, Some(Summed::First)) => End::CUBLASLT_EPILOGUE_BGRADB,
        (Relu, false, false, None) => End::CUBLASLT_EPILOGUE_RELU,
        (Relu, true, false, None) => End::CUBLASLT_EPILOGUE_RELU_BIAS,
        (GeluTanh, false, false, None) => End::CUBLASLT_EPILOGUE_GELU,
        (GeluTanh, true, false, None) => End::CUBLASLT_EPILOGUE_GELU_BIAS,
        (GeluTanh, false, true, None) => End::CUBLASLT_EPILOGUE_GELU_AUX,
        (GeluTanh, true, true, None) => End::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        (GeluTanhGrad, false, true, None) => End::CUBLASLT_EPILOGUE_DGELU,
        (GeluTanhGrad, false, true, Some(Summed::Result)) => End::CUBLASLT_EPILOGUE_DGELU_BGRAD,
        _ => return Err(result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)),
    })
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// The description of a matrix, and of a batch of them.
struct MatrixLayout(sys::cublasLtMatrixLayout_t);

impl MatrixLayout {
    /// Describes a matrix `[rows, columns]` that is stored by rows, or by columns. To the library one that is stored by rows is the
    /// transpose, stored by columns.
    fn from_matrix(
        dtype: DType,
        matrix: &Matrix,
        [rows, columns]: [usize; 2],
        batch: usize,
    ) -> Result<Self, result::CublasError> {
        use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
        let [short, long] = if matrix.by_columns { [rows, columns] } else { [columns, rows] };
        let leading = matrix.leading.max(1) as i64;
        let ty = element_code(dtype);
        let layout = Self(result::create_matrix_layout(ty, short as u64, long as u64, leading)?);
        if batch > 1 {
            let (count, stride) = (batch as i32, matrix.stride as i64);
            let count = std::ptr::from_ref(&count).cast();
            let stride = std::ptr::from_ref(&stride).cast();
            let [batches, strides] = [
                Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
            ];
            // SAFETY: both values are read before the calls return; their sizes are the attributes'.
            unsafe {
                result::set_matrix_layout_attribute(layout.0, batches, count, 4)?;
                result::set_matrix_layout_attribute(layout.0, strides, stride, 8)?;
            }
        }
        Ok(layout)
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// The library's preference, by which an algorithm is chosen.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    /// Sets what algorithms must support; `aligned`: multiples of how many bytes the factors and the result begin at. Parts of a
    /// sum are joined as f32, whatever is `made`, and never where the result lies, as that may be the summand's memory.
    fn new([a, b, out]: [u32; 3], made: DType) -> Result<Self, result::CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Self(result::create_matmul_pref()?);
        let workspace = WORKSPACE;
        let most = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let place = std::ptr::from_ref(&workspace).cast();
        // SAFETY: the value is read before the call returns; its size is the attribute's.
        unsafe { result::set_matmul_pref_attribute(preference.0, most, place, 8) }?;
        // To the library the second factor is the first.
        for (attribute, aligned) in [
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out),
        ] {
            let place = std::ptr::from_ref(&aligned).cast();
            // SAFETY: as above.
            unsafe { result::set_matmul_pref_attribute(preference.0, attribute, place, 4) }?;
        }
        let schemes = reduction_schemes(made);
        let mask = Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        let place = std::ptr::from_ref(&schemes).cast();
        // SAFETY: as above.
        unsafe { result::set_matmul_pref_attribute(preference.0, mask, place, 4) }?;
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was created once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// Returns the ways in which parts of sums may be joined: in memory to work in, as f32.
fn reduction_schemes(made: DType) -> u32 {
    use sys::cublasLtReductionScheme_t as Scheme;
    let computed = Scheme::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    match made {
        DType::F32 => computed | Scheme::CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE as u32,
        DType::F16
        | DType::BF16
        | DType::I64
        | DType::I32
        | DType::U8
        | DType::Bool
        | DType::F8E4M3
        | DType::F8E5M2 => computed,
    }
}

/// Returns the multiples of a power of two, in bytes, at which all matrices of both factors and of the result begin. Registers
/// begin at multiples of [`ALIGNMENT`].
fn matrix_alignments(product: &MatrixProduct) -> [u32; 3] {
    let strides = [product.a.stride, product.b.stride, product.out.stride];
    let sizes = element_sizes(product);
    std::array::from_fn(|part| {
        let places = product.starts.iter().map(|start| start[part]).chain([strides[part]]);
        let bits = places.fold(ALIGNMENT, |bits, element| bits | (element * sizes[part]));
        1 << bits.trailing_zeros()
    })
}

/// Returns the bytes of an element of both factors and of the result.
fn element_sizes(product: &MatrixProduct) -> [usize; 3] {
    let [factor, made] = [product.operands.dtype, product.operands.made].map(DType::size);
    [factor, factor, made]
}

fn element_code(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        // Kernels multiply integers, and copies of bf16 those of 8 bits.
        DType::F32
        | DType::I64
        | DType::I32
        | DType::U8
        | DType::Bool
        | DType::F8E4M3
        | DType::F8E5M2 => sys::cudaDataType::CUDA_R_32F,
    }
}
