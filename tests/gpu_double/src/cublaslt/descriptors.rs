//! Descriptors: plain memory that attributes are written into and read from.
//!
//! As NVIDIA's library does, a descriptor takes any value of the right size; what the values mean is looked at
//! when a product is asked for. Sizes that are not exactly those of the attribute are refused.

use std::ffi::c_void;

use super::types::Status;

/// A descriptor of one of three kinds. All have fields at known places, by number of attribute.
pub trait Descriptor: Sized {
    /// The number at the start of each descriptor of this kind, by which one of another kind is told.
    const MAGIC: u64;
    /// Offset and bytes of an attribute's field; `None` where there is no such attribute.
    fn field(attribute: i32) -> Option<(usize, usize)>;
    /// The number that marks this descriptor.
    fn magic(&mut self) -> &mut u64;
}

/// Offset and size of a field of a struct.
macro_rules! field {
    ($owner:ty, $name:ident) => {{
        let offset = std::mem::offset_of!($owner, $name);
        // Only the type of the place is looked at.
        const fn size<T>(_: fn(&$owner) -> &T) -> usize {
            size_of::<T>()
        }
        Some((offset, size(|owner: &$owner| &owner.$name)))
    }};
}

/// A product: `cublasLtMatmulDesc_t`. Fields bear the names of their attributes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct MatmulDescriptor {
    magic: u64,
    pub bias_pointer: u64,
    pub bias_batch_stride: i64,
    pub aux_pointer: u64,
    pub aux_ld: i64,
    pub aux_batch_stride: i64,
    pub alpha_vector_batch_stride: i64,
    /// Scales of A, B, C, D and of aux, and where largest values go: for types of 8 bits.
    pub scales: [u64; 8],
    pub alpha_batch_stride: i64,
    pub beta_batch_stride: i64,
    pub compute_type: i32,
    pub scale_type: i32,
    pub pointer_mode: i32,
    pub transpose_a: i32,
    pub transpose_b: i32,
    pub transpose_c: i32,
    pub fill_mode: i32,
    pub epilogue: u32,
    pub sm_count_target: i32,
    pub aux_data_type: i32,
    pub bias_data_type: i32,
    pub scale_modes: [i32; 6],
    pub fast_accumulation: i8,
}

impl MatmulDescriptor {
    /// A descriptor with the defaults of `cublasLt.h`.
    pub fn new(compute_type: i32, scale_type: i32) -> MatmulDescriptor {
        MatmulDescriptor {
            magic: Self::MAGIC,
            bias_pointer: 0,
            bias_batch_stride: 0,
            aux_pointer: 0,
            aux_ld: 0,
            aux_batch_stride: 0,
            alpha_vector_batch_stride: 0,
            scales: [0; 8],
            alpha_batch_stride: 0,
            beta_batch_stride: 0,
            compute_type,
            scale_type,
            pointer_mode: 0,
            transpose_a: 0,
            transpose_b: 0,
            transpose_c: 0,
            fill_mode: FULL,
            epilogue: 1,
            sm_count_target: 0,
            aux_data_type: -1,
            bias_data_type: -1,
            scale_modes: [0; 6],
            fast_accumulation: 0,
        }
    }

    /// Place of the n-th pointer of `scales`.
    fn scale(n: usize) -> Option<(usize, usize)> {
        Some((std::mem::offset_of!(MatmulDescriptor, scales) + 8 * n, 8))
    }

    /// Place of the n-th of `scale_modes`.
    fn scale_mode(n: usize) -> Option<(usize, usize)> {
        Some((std::mem::offset_of!(MatmulDescriptor, scale_modes) + 4 * n, 4))
    }
}

/// `CUBLAS_FILL_MODE_FULL`.
pub const FULL: i32 = 2;

impl Descriptor for MatmulDescriptor {
    const MAGIC: u64 = 0x6d61_746d_756c_0001;

    fn field(attribute: i32) -> Option<(usize, usize)> {
        match attribute {
            0 => field!(MatmulDescriptor, compute_type),
            1 => field!(MatmulDescriptor, scale_type),
            2 => field!(MatmulDescriptor, pointer_mode),
            3 => field!(MatmulDescriptor, transpose_a),
            4 => field!(MatmulDescriptor, transpose_b),
            5 => field!(MatmulDescriptor, transpose_c),
            6 => field!(MatmulDescriptor, fill_mode),
            7 => field!(MatmulDescriptor, epilogue),
            8 => field!(MatmulDescriptor, bias_pointer),
            10 => field!(MatmulDescriptor, bias_batch_stride),
            11 => field!(MatmulDescriptor, aux_pointer),
            12 => field!(MatmulDescriptor, aux_ld),
            13 => field!(MatmulDescriptor, aux_batch_stride),
            14 => field!(MatmulDescriptor, alpha_vector_batch_stride),
            15 => field!(MatmulDescriptor, sm_count_target),
            17..=21 => Self::scale(attribute as usize - 17),
            22 => field!(MatmulDescriptor, aux_data_type),
            23 | 24 => Self::scale(attribute as usize - 18),
            25 => field!(MatmulDescriptor, fast_accumulation),
            26 => field!(MatmulDescriptor, bias_data_type),
            31..=35 => Self::scale_mode(attribute as usize - 31),
            36 => Self::scale(7),
            37 => Self::scale_mode(5),
            39 => field!(MatmulDescriptor, alpha_batch_stride),
            40 => field!(MatmulDescriptor, beta_batch_stride),
            _ => None,
        }
    }

    fn magic(&mut self) -> &mut u64 {
        &mut self.magic
    }
}

/// A matrix: `cublasLtMatrixLayout_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Layout {
    magic: u64,
    pub rows: u64,
    pub cols: u64,
    pub ld: i64,
    pub batch_offset: i64,
    pub plane_offset: i64,
    pub element: i32,
    pub order: i32,
    pub batch_count: i32,
    pub batch_mode: u32,
}

impl Layout {
    /// A matrix in column-major order, without a batch.
    pub fn new(element: i32, rows: u64, cols: u64, ld: i64) -> Layout {
        Layout {
            magic: Self::MAGIC,
            rows,
            cols,
            ld,
            batch_offset: 0,
            plane_offset: 0,
            element,
            order: 0,
            batch_count: 1,
            batch_mode: 0,
        }
    }
}

impl Descriptor for Layout {
    const MAGIC: u64 = 0x6d61_746d_756c_0002;

    fn field(attribute: i32) -> Option<(usize, usize)> {
        match attribute {
            0 => field!(Layout, element),
            1 => field!(Layout, order),
            2 => field!(Layout, rows),
            3 => field!(Layout, cols),
            4 => field!(Layout, ld),
            5 => field!(Layout, batch_count),
            6 => field!(Layout, batch_offset),
            7 => field!(Layout, plane_offset),
            8 => field!(Layout, batch_mode),
            _ => None,
        }
    }

    fn magic(&mut self) -> &mut u64 {
        &mut self.magic
    }
}

/// The needs that an algorithm may have: `cublasLtMatmulPreference_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Preference {
    magic: u64,
    pub max_workspace: u64,
    pub implementations: u64,
    pub search_mode: u32,
    pub reduction_schemes: u32,
    /// Bytes to which pointers of A, B, C and D are aligned at least.
    pub alignments: [u32; 4],
    pub max_waves: f32,
}

impl Preference {
    /// No workspace, pointers aligned to 256 bytes, all else allowed.
    pub fn new() -> Preference {
        Preference {
            magic: Self::MAGIC,
            max_workspace: 0,
            implementations: u64::MAX,
            search_mode: 0,
            reduction_schemes: 7,
            alignments: [256; 4],
            max_waves: 0.0,
        }
    }
}

impl Default for Preference {
    fn default() -> Self {
        Self::new()
    }
}

impl Descriptor for Preference {
    const MAGIC: u64 = 0x6d61_746d_756c_0003;

    fn field(attribute: i32) -> Option<(usize, usize)> {
        match attribute {
            0 => field!(Preference, search_mode),
            1 => field!(Preference, max_workspace),
            3 => field!(Preference, reduction_schemes),
            5..=8 => {
                let first = std::mem::offset_of!(Preference, alignments);
                Some((first + 4 * (attribute as usize - 5), 4))
            }
            9 => field!(Preference, max_waves),
            12 => field!(Preference, implementations),
            _ => None,
        }
    }

    fn magic(&mut self) -> &mut u64 {
        &mut self.magic
    }
}

/// The descriptor behind a pointer of C; `None` where it is null, of another kind or destroyed.
///
/// # Safety
/// The pointer is null or points to a descriptor's memory, which destroyed ones keep.
pub unsafe fn find<'a, D: Descriptor>(pointer: *mut c_void) -> Option<&'a mut D> {
    // SAFETY: the caller's promise; all kinds begin with their magic number and are aligned like it.
    let descriptor = unsafe { pointer.cast::<D>().as_mut() }?;
    (*descriptor.magic() == D::MAGIC).then_some(descriptor)
}

/// Copies `bytes` at `buffer` into an attribute.
///
/// # Safety
/// As `find`; `buffer` is null or has that many bytes.
pub unsafe fn set<D: Descriptor>(
    pointer: *mut c_void,
    attribute: i32,
    buffer: *const c_void,
    bytes: usize,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(descriptor) = (unsafe { find::<D>(pointer) }) else { return Status::InvalidValue };
    match D::field(attribute) {
        Some((offset, size)) if size == bytes && !buffer.is_null() => {
            let field = std::ptr::from_mut(descriptor).cast::<u8>().wrapping_add(offset);
            // SAFETY: the field lies in the descriptor and has this size, and so has the buffer.
            unsafe { std::ptr::copy_nonoverlapping(buffer.cast::<u8>(), field, size) };
            Status::Success
        }
        _ => Status::InvalidValue,
    }
}

/// Copies an attribute to `buffer`; of 0 bytes, only says in `written` how many there are.
///
/// # Safety
/// As `find`; `buffer` is null or has that many bytes, `written` is null or a place.
pub unsafe fn get<D: Descriptor>(
    pointer: *mut c_void,
    attribute: i32,
    buffer: *mut c_void,
    bytes: usize,
    written: *mut usize,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(descriptor) = (unsafe { find::<D>(pointer) }) else { return Status::InvalidValue };
    let Some((offset, size)) = D::field(attribute) else { return Status::InvalidValue };
    // SAFETY: the caller's promise.
    let written = unsafe { written.as_mut() };
    if bytes == 0 {
        return written.map_or(Status::InvalidValue, |written| {
            *written = size;
            Status::Success
        });
    }
    if bytes != size || buffer.is_null() {
        return Status::InvalidValue;
    }
    let field = std::ptr::from_mut(descriptor).cast::<u8>().wrapping_add(offset);
    // SAFETY: the field lies in the descriptor and has this size, and so has the buffer.
    unsafe { std::ptr::copy_nonoverlapping(field, buffer.cast::<u8>(), size) };
    if let Some(written) = written {
        *written = size;
    }
    Status::Success
}
