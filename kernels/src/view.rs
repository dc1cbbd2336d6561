//! Shards in memory: what kernels read and write. Nearly all `unsafe` of the crate is here: views keep raw pointers,
//! because an output may be the same memory as an operand where the op works in place.

use std::marker::PhantomData;
use std::ops::Range;

use graphc_ir::types::DType;
use half::{bf16, f16};

use crate::error::KernelError;

/// A Rust type that holds the elements of one or more [`DType`]s: any bit pattern is a value of it.
pub trait Element:
    Copy + Default + Send + Sync + PartialEq + PartialOrd + sealed::Plain + 'static
{
    /// Whether elements of `dtype` are of this type.
    fn holds_dtype(dtype: DType) -> bool;

    /// Chooses one of two elements by their bits: of `if` the compiler would make a choice between addresses.
    fn choose(first: bool, a: Self, b: Self) -> Self;
}

mod sealed {
    pub trait Plain {}
    impl Plain for f32 {}
    impl Plain for i64 {}
    impl Plain for i32 {}
    impl Plain for u8 {}
    impl Plain for half::f16 {}
    impl Plain for half::bf16 {}
}

impl Element for f32 {
    fn holds_dtype(dtype: DType) -> bool {
        dtype == DType::F32
    }

    #[inline(always)]
    fn choose(first: bool, a: Self, b: Self) -> Self {
        let mask = 0u32.wrapping_sub(u32::from(first));
        f32::from_bits(b.to_bits() ^ ((a.to_bits() ^ b.to_bits()) & mask))
    }
}

impl Element for i64 {
    fn holds_dtype(dtype: DType) -> bool {
        dtype == DType::I64
    }

    #[inline(always)]
    fn choose(first: bool, a: Self, b: Self) -> Self {
        b ^ ((a ^ b) & 0i64.wrapping_sub(i64::from(first)))
    }
}

impl Element for i32 {
    fn holds_dtype(dtype: DType) -> bool {
        dtype == DType::I32
    }

    #[inline(always)]
    fn choose(first: bool, a: Self, b: Self) -> Self {
        b ^ ((a ^ b) & 0i32.wrapping_sub(i32::from(first)))
    }
}

/// `u8`, truth values as 0 or 1, and floating-point numbers of 8 bits.
impl Element for u8 {
    fn holds_dtype(dtype: DType) -> bool {
        matches!(dtype, DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2)
    }

    #[inline(always)]
    fn choose(first: bool, a: Self, b: Self) -> Self {
        b ^ ((a ^ b) & 0u8.wrapping_sub(u8::from(first)))
    }
}

impl Element for f16 {
    fn holds_dtype(dtype: DType) -> bool {
        dtype == DType::F16
    }

    #[inline(always)]
    fn choose(first: bool, a: Self, b: Self) -> Self {
        f16::from_bits(choose_bits(first, a.to_bits(), b.to_bits()))
    }
}

impl Element for bf16 {
    fn holds_dtype(dtype: DType) -> bool {
        dtype == DType::BF16
    }

    #[inline(always)]
    fn choose(first: bool, a: Self, b: Self) -> Self {
        bf16::from_bits(choose_bits(first, a.to_bits(), b.to_bits()))
    }
}

#[inline(always)]
fn choose_bits(first: bool, a: u16, b: u16) -> u16 {
    b ^ ((a ^ b) & 0u16.wrapping_sub(u16::from(first)))
}

const ZEROS: [usize; 32] = [0; 32];

/// A tensor shard in memory that a kernel reads: contiguous, row-major.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents of the shard.
    pub shape: &'a [usize],
    /// Extents of the whole tensor.
    pub global: &'a [usize],
    /// The index of the shard's first element in the whole tensor.
    pub origin: &'a [usize],
    data: *const u8,
    len: usize,
    lifetime: PhantomData<&'a ()>,
}

// SAFETY: a view is a shared reference to plain elements; writes through an aliasing `ViewMut` touch only what the
// thread itself reads (see `View::new`).
unsafe impl Send for View<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Asks the cache for elements, which are not read.
    pub(crate) fn prefetch_range(&self, range: Range<usize>) {
        let size = self.dtype.size();
        #[cfg(target_arch = "x86_64")]
        for byte in (range.start * size..range.end * size).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint, which reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.data.wrapping_add(byte).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (range, size);
    }

    /// A view of memory.
    ///
    /// # Safety
    /// `data` is aligned for the element type and valid for reads of `shape`'s elements for `'a`. It may overlap an
    /// output of the same kernel call only where [`graphc_ir::op::Operation::in_place`] names the pair, and then begins where it begins.
    pub unsafe fn new(
        dtype: DType,
        shape: &'a [usize],
        global: &'a [usize],
        origin: &'a [usize],
        data: *const u8,
    ) -> Self {
        let len = shape.iter().product();
        Self { dtype, shape, global, origin, data, len, lifetime: PhantomData }
    }

    /// A view of a slice; panics where the number of elements or the element type is another.
    pub fn from_slice<T: Element>(
        dtype: DType,
        shape: &'a [usize],
        global: &'a [usize],
        origin: &'a [usize],
        data: &'a [T],
    ) -> Self {
        assert!(T::holds_dtype(dtype), "a slice of another type than {dtype}");
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of {shape:?}");
        // SAFETY: the slice is borrowed for 'a, has this type and this many elements.
        unsafe { Self::new(dtype, shape, global, origin, data.as_ptr().cast()) }
    }

    /// A view of a slice that is the whole of its tensor; panics as [`View::from_slice`] does.
    pub fn whole<T: Element>(dtype: DType, shape: &'a [usize], data: &'a [T]) -> Self {
        Self::from_slice(dtype, shape, shape, &ZEROS[..shape.len()], data)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], KernelError> {
        self.block(0..self.len)
    }

    /// The elements `range`, row-major. Kernels that work in place hold it no longer than until they write the same range.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    pub fn block<T: Element>(&self, range: Range<usize>) -> Result<&'a [T], KernelError> {
        self.check::<T>()?;
        assert!(range.start <= range.end && range.end <= self.len, "block of a view");
        if range.is_empty() {
            return Ok(&[]);
        }
        // SAFETY: inside the memory that `new` was given, of the type just checked; any bits are a `T`.
        Ok(unsafe {
            std::slice::from_raw_parts(self.data.cast::<T>().add(range.start), range.len())
        })
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: inside the memory that `new` was given.
        unsafe { std::slice::from_raw_parts(self.data, self.len * self.dtype.size()) }
    }

    /// The address of the first element.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    pub fn ptr<T: Element>(&self) -> Result<*const T, KernelError> {
        self.check::<T>()?;
        Ok(self.data.cast())
    }

    fn check<T: Element>(&self) -> Result<(), KernelError> {
        if T::holds_dtype(self.dtype) {
            Ok(())
        } else {
            Err(KernelError::wrong_dtype::<T>(self.dtype))
        }
    }
}

/// A tensor shard in memory that a kernel writes: contiguous, row-major.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents of the shard.
    pub shape: &'a [usize],
    /// Extents of the whole tensor.
    pub global: &'a [usize],
    /// The index of the shard's first element in the whole tensor.
    pub origin: &'a [usize],
    data: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a mut ()>,
}

// SAFETY: a view is an exclusive reference to plain elements.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: a shared `ViewMut` gives no access to the elements.
unsafe impl Sync for ViewMut<'_> {}

impl<'a> ViewMut<'a> {
    /// A view of memory.
    ///
    /// # Safety
    /// `data` is aligned for the element type and valid for reads and writes of `shape`'s elements for `'a`, is
    /// initialized, and nothing else reaches it, except a [`View`] of an operand that the op may overwrite.
    pub unsafe fn new(
        dtype: DType,
        shape: &'a [usize],
        global: &'a [usize],
        origin: &'a [usize],
        data: *mut u8,
    ) -> Self {
        let len = shape.iter().product();
        Self { dtype, shape, global, origin, data, len, lifetime: PhantomData }
    }

    /// A view of a slice; panics where the number of elements or the element type is another.
    pub fn from_slice<T: Element>(
        dtype: DType,
        shape: &'a [usize],
        global: &'a [usize],
        origin: &'a [usize],
        data: &'a mut [T],
    ) -> Self {
        assert!(T::holds_dtype(dtype), "a slice of another type than {dtype}");
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of {shape:?}");
        // SAFETY: the slice is exclusively borrowed for 'a, has this type and this many elements.
        unsafe { Self::new(dtype, shape, global, origin, data.as_mut_ptr().cast()) }
    }

    /// A view of a slice that is the whole of its tensor; panics as [`ViewMut::from_slice`] does.
    pub fn whole<T: Element>(dtype: DType, shape: &'a [usize], data: &'a mut [T]) -> Self {
        Self::from_slice(dtype, shape, shape, &ZEROS[..shape.len()], data)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements. Kernels that work in place use [`ViewMut::flat`] instead.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], KernelError> {
        if !T::holds_dtype(self.dtype) {
            return Err(KernelError::wrong_dtype::<T>(self.dtype));
        }
        if self.len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the memory that `new` was given, of the type just checked, borrowed with `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.len) })
    }

    /// The elements as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the memory that `new` was given, borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len * self.dtype.size()) }
    }

    /// The address of the first element.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    pub fn ptr<T: Element>(&mut self) -> Result<*mut T, KernelError> {
        if T::holds_dtype(self.dtype) {
            Ok(self.data.cast())
        } else {
            Err(KernelError::wrong_dtype::<T>(self.dtype))
        }
    }

    /// The elements as a range that can be cut and written block by block.
    pub fn flat(&mut self) -> Flat<'_> {
        Flat { dtype: self.dtype, data: self.data, len: self.len, lifetime: PhantomData }
    }

    /// The elements as parts that several threads write.
    pub(crate) fn parts(&mut self) -> OutputParts<'_> {
        OutputParts { dtype: self.dtype, data: self.data, len: self.len, lifetime: PhantomData }
    }

    /// The elements as parts, and to be read when a part is there.
    ///
    /// # Safety
    /// What is read is not held while it is written.
    pub(crate) unsafe fn shared_parts(&mut self) -> (View<'_>, OutputParts<'_>) {
        // SAFETY: the memory that `new` was given.
        let view =
            unsafe { View::new(self.dtype, self.shape, self.global, self.origin, self.data) };
        (view, self.parts())
    }

    /// Whether `operand` is the same memory.
    pub fn is_same(&self, operand: &View<'_>) -> bool {
        std::ptr::eq(self.data, operand.data)
    }
}

/// The elements of an output that several threads write, each its own part, and read again when a part is there.
#[derive(Clone, Copy)]
pub(crate) struct OutputParts<'a> {
    dtype: DType,
    data: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a mut ()>,
}

// SAFETY: who takes a part vouches that nobody else reaches its elements meanwhile.
unsafe impl Send for OutputParts<'_> {}
// SAFETY: as above.
unsafe impl Sync for OutputParts<'_> {}

impl<'a> OutputParts<'a> {
    /// Takes all elements of a slice; panics where the element type is another.
    pub(crate) fn from_slice<T: Element>(dtype: DType, slice: &'a mut [T]) -> Self {
        assert!(T::holds_dtype(dtype), "a slice of another type than {dtype}");
        Self { dtype, data: slice.as_mut_ptr().cast(), len: slice.len(), lifetime: PhantomData }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first element.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn ptr<T: Element>(&self) -> Result<*mut T, KernelError> {
        if T::holds_dtype(self.dtype) {
            Ok(self.data.cast())
        } else {
            Err(KernelError::wrong_dtype::<T>(self.dtype))
        }
    }

    /// Whether they are all elements of a result of this type.
    pub(crate) fn is_of(&self, dtype: DType, elements: usize) -> bool {
        (self.dtype, self.len) == (dtype, elements)
    }

    /// Whether `operand` is the same memory.
    pub(crate) fn is_same(&self, operand: &View<'_>) -> bool {
        std::ptr::eq(self.data, operand.data)
    }

    /// Returns some of the elements.
    ///
    /// # Safety
    /// Nobody else reaches them while the part is there, unless between two of its writes.
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> Flat<'a> {
        let Self { dtype, data, len, lifetime } = *self;
        Flat { dtype, data, len, lifetime }.cut_range(range)
    }
}

/// Consecutive elements of an output, which a kernel writes block by block: between two writes it may read an operand
/// that is the same memory.
pub struct Flat<'a> {
    dtype: DType,
    data: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a mut ()>,
}

// SAFETY: exclusive access to plain elements.
unsafe impl Send for Flat<'_> {}

impl<'a> Flat<'a> {
    /// Makes one element of `dtype` for each word: memory to work in.
    pub(crate) fn of_words(dtype: DType, words: &'a mut [i64]) -> Self {
        let len = words.len();
        Flat { dtype, data: words.as_mut_ptr().cast(), len, lifetime: PhantomData }
    }

    /// Returns the same elements, borrowed for a shorter time.
    pub(crate) fn reborrow(&mut self) -> Flat<'_> {
        Flat { dtype: self.dtype, data: self.data, len: self.len, lifetime: PhantomData }
    }

    /// Returns some of the elements.
    pub(crate) fn cut_range(self, range: Range<usize>) -> Flat<'a> {
        self.split_at(range.end).0.split_at(range.start).1
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `count` elements and the rest.
    pub fn split_at(self, count: usize) -> (Flat<'a>, Flat<'a>) {
        assert!(count <= self.len, "split of an output");
        // SAFETY: `count` is at most the length, so the address is inside or one past the memory.
        let rest = unsafe { self.data.add(count * self.dtype.size()) };
        let part = |data, len| Flat { dtype: self.dtype, data, len, lifetime: PhantomData };
        (part(self.data, count), part(rest, self.len - count))
    }

    /// Whether the elements from `start` on are the memory of those of an operand from `at` on, and of its type.
    pub(crate) fn is_at(&self, start: usize, operand: &View<'_>, at: usize) -> bool {
        let bytes = self.dtype.size();
        let [own, others] = [self.data.cast_const(), operand.data];
        self.dtype == operand.dtype
            && own.wrapping_add(start * bytes) == others.wrapping_add(at * bytes)
    }

    /// Writes elements at `start`.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    pub fn write<T: Element>(&mut self, start: usize, elements: &[T]) -> Result<(), KernelError> {
        self.block(start..start + elements.len())?.copy_from_slice(elements);
        Ok(())
    }

    /// Element type.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    pub(crate) fn into_slice<T: Element>(mut self) -> Result<&'a mut [T], KernelError> {
        let len = self.len;
        let data = self.block::<T>(0..len)?.as_mut_ptr();
        // SAFETY: the memory is borrowed for 'a, and `self` is gone.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
    }

    /// The elements `range`. Where an operand is the same memory, its blocks that overlap must not be held.
    ///
    /// # Errors
    /// Returns an error if the element type is another.
    pub fn block<T: Element>(&mut self, range: Range<usize>) -> Result<&mut [T], KernelError> {
        if !T::holds_dtype(self.dtype) {
            return Err(KernelError::wrong_dtype::<T>(self.dtype));
        }
        assert!(range.start <= range.end && range.end <= self.len, "block of an output");
        if range.is_empty() {
            return Ok(&mut []);
        }
        // SAFETY: inside the memory, of the type just checked, borrowed with `self`.
        Ok(unsafe {
            std::slice::from_raw_parts_mut(self.data.cast::<T>().add(range.start), range.len())
        })
    }
}

/// The first `count` elements that [`Flat::of_words`] has written to.
pub(crate) fn read_elements<T: Element>(words: &[i64], count: usize) -> &[T] {
    assert!(count <= words.len() && size_of::<T>() <= size_of::<i64>(), "elements of a buffer");
    // SAFETY: inside the words, which are aligned for every element type; any bits are a `T`.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), count) }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheLine {
    _bytes: [u8; 64],
}

/// Memory that kernels use while they run: kept from call to call, grown where a call needs more.
#[derive(Default)]
pub struct Scratch {
    lines: CacheLines,
    /// The memory of kernels that others call.
    inner: Option<Box<Scratch>>,
}

/// Lines of a cache, as many as were ever needed.
#[derive(Default)]
pub(crate) struct CacheLines(Vec<CacheLine>);

impl Scratch {
    /// No memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// `count` elements of any content, aligned to 64 bytes.
    pub fn take<T: Element>(&mut self, count: usize) -> &mut [T] {
        self.lines.take::<T, u8>([count, 0]).0
    }

    /// Elements of two types, as [`Scratch::take`] gives them of one.
    pub(crate) fn take_both<A: Element, B: Element>(
        &mut self,
        counts: [usize; 2],
    ) -> (&mut [A], &mut [B]) {
        self.lines.take(counts)
    }

    /// Returns this memory, and other memory for a kernel that is called while this is in use.
    pub(crate) fn nested(&mut self) -> (&mut CacheLines, &mut Scratch) {
        (&mut self.lines, self.inner.get_or_insert_default())
    }
}

impl CacheLines {
    /// Elements of two types, of any content, each aligned to 64 bytes.
    pub(crate) fn take<A: Element, B: Element>(
        &mut self,
        counts: [usize; 2],
    ) -> (&mut [A], &mut [B]) {
        let bytes = [counts[0] * size_of::<A>(), counts[1] * size_of::<B>()];
        let lines = bytes.map(|bytes| bytes.div_ceil(64));
        if self.0.len() < lines[0] + lines[1] {
            self.0.resize(lines[0] + lines[1], CacheLine { _bytes: [0; 64] });
        }
        let (a, b) = self.0.split_at_mut(lines[0]);
        // SAFETY: the lines are initialized bytes, as many as the elements need, aligned to 64; any bits are an `A`.
        let a = unsafe { std::slice::from_raw_parts_mut(a.as_mut_ptr().cast(), counts[0]) };
        // SAFETY: as above, for the other elements and `B`.
        let b = unsafe { std::slice::from_raw_parts_mut(b.as_mut_ptr().cast(), counts[1]) };
        (a, b)
    }
}
