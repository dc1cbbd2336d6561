//! Makes global tensors. Random elements are Philox numbers of the seed, of the number of random tensors drawn before, and of an element's position
//! in the whole tensor.

use graphc_ir::mesh::Placement;
use graphc_ir::random::{RandomStream, key_of};
use graphc_ir::sbp::{NdSbp, Sbp};
use graphc_ir::types::{DType, TensorType};
use graphc_plan::Layout;
use graphc_runtime::{HostTensor, RoutineCall, RuntimeError, cut_shard, generate_shard};

use crate::context::Eager;
use crate::error::EagerError;
use crate::tensor::GlobalTensor;

/// # New tensors
///
/// Tensors have the element type of [`Eager::of`], or f32. Every rank makes its own shard. In a partial layout the first rank of an axis holds the
/// numbers, and the others hold what changes nothing in the sum.
impl Eager {
    /// Makes a tensor of zeros.
    ///
    /// # Errors
    /// Returns an error if the placement names ranks that do not exist, if the layout does not fit, if the ranks call different things, or if the job
    /// ends. All functions that make tensors do so.
    pub fn zeros(
        &self,
        shape: impl Into<Vec<usize>>,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<GlobalTensor, EagerError> {
        self.full(shape, 0.0, placement, sbp)
    }

    /// Makes a tensor of ones.
    ///
    /// # Errors
    /// As [`Eager::zeros`].
    pub fn ones(
        &self,
        shape: impl Into<Vec<usize>>,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<GlobalTensor, EagerError> {
        self.full(shape, 1.0, placement, sbp)
    }

    /// Makes a tensor that has one number everywhere.
    ///
    /// # Errors
    /// As [`Eager::zeros`].
    pub fn full(
        &self,
        shape: impl Into<Vec<usize>>,
        value: f64,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<GlobalTensor, EagerError> {
        scalar_element(self.dtype(), value)?;
        self.create_tensor((shape.into(), placement, sbp), &format!("full {value}"), &mut |_| value)
    }

    /// Makes a tensor of numbers of the standard normal distribution. They are a function of the seed, of the number of random tensors drawn before,
    /// and of each element's position in the whole tensor, so they are the same on every placement and in every layout.
    ///
    /// # Errors
    /// As [`Eager::zeros`].
    pub fn randn(
        &self,
        shape: impl Into<Vec<usize>>,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<GlobalTensor, EagerError> {
        let (stream, what) = self.draw_stream("randn")?;
        let mut normal = |place| f64::from(stream.normal(place));
        self.create_tensor((shape.into(), placement, sbp), &what, &mut normal)
    }

    /// Makes a tensor of numbers in [0, 1), which are drawn like those of [`Eager::randn`].
    ///
    /// # Errors
    /// As [`Eager::zeros`].
    pub fn rand(
        &self,
        shape: impl Into<Vec<usize>>,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<GlobalTensor, EagerError> {
        let (stream, what) = self.draw_stream("rand")?;
        let mut uniform = |place| f64::from(stream.uniform(place));
        self.create_tensor((shape.into(), placement, sbp), &what, &mut uniform)
    }

    /// Makes a tensor of one dim: 0, 1, 2 and so on up to `end`, which is left out.
    ///
    /// # Errors
    /// As [`Eager::zeros`].
    pub fn arange(
        &self,
        end: usize,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<GlobalTensor, EagerError> {
        self.create_tensor((vec![end], placement, sbp), "arange", &mut |place| place as f64)
    }

    /// Distributes a whole tensor that is the same on all ranks.
    ///
    /// # Errors
    /// As [`Eager::zeros`].
    pub fn from_host(
        &self,
        whole: &HostTensor,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<GlobalTensor, EagerError> {
        let layout = self.build_layout(&whole.ty(), placement, sbp)?;
        let spot = self.find_spot(&layout);
        self.compare_call(
            &format!("from_host {:016x}: {spot}", digest_bytes(whole.bytes())),
            &layout.ranks,
        )?;
        let local = cut_shard(whole, &layout, self.rank());
        Ok(GlobalTensor::new(self, spot, local))
    }

    /// Makes the tensor whose shards are the ranks' local tensors. Its shape follows from theirs: along a dim that is split, the extents of the ranks
    /// add up. All ranks of the group call it; the local tensors of ranks outside the placement are ignored.
    ///
    /// # Errors
    /// Returns an error on all ranks if the local tensors are not of one type, or their shapes are not those of shards of one tensor. (If a dim does
    /// not split evenly, the first ranks hold one more.) Otherwise as [`Eager::zeros`].
    pub fn from_local(
        &self,
        local: &HostTensor,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<GlobalTensor, EagerError> {
        self.check_placement(placement)?;
        self.compare_call(&format!("from_local in ({sbp}) on {placement}"), &self.all().ranks)?;
        let brought = self.lock_state().routines.gather_bytes(&bytes_of(&local.ty()))?;
        let brought: Vec<TensorType> = brought.iter().map(|bytes| type_of(bytes)).collect();
        let layout = self.whole_layout(&brought, placement, sbp)?;
        let mine = placement.position(self.rank()).map(|_| local.clone());
        Ok(GlobalTensor::new(self, self.find_spot(&layout), mine))
    }

    /// Returns the layout of the tensor whose shards are of these types, which are given by rank of the group.
    fn whole_layout(
        &self,
        brought: &[TensorType],
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<Layout, EagerError> {
        let of = |rank: u32| &brought[rank as usize];
        let first = of(placement.ranks[0]);
        let extent =
            |dim| whole_extent(dim, placement, sbp, &|rank| of(rank).shape.get(dim).copied());
        let shape = (0..first.shape.len()).map(extent).collect();
        let shape = TensorType { dtype: first.dtype, shape };
        let layout = self.build_layout(&shape, placement, sbp)?;
        for &rank in &placement.ranks {
            let extent = layout.rect(rank, 0, 1).map_or_else(Vec::new, |rect| rect.extent);
            let expected = TensorType { dtype: shape.dtype, shape: extent };
            if *of(rank) != expected {
                let (found, layout) = (of(rank).clone(), Box::new(layout));
                return Err(EagerError::Local { rank, found, expected, layout });
            }
        }
        Ok(layout)
    }

    /// Returns the random stream of the next tensor, and its description. Each tensor has a stream of its own.
    fn draw_stream(&self, what: &'static str) -> Result<(RandomStream, String), EagerError> {
        let dtype = self.dtype();
        if !dtype.is_float() {
            return Err(EagerError::Random { what, dtype });
        }
        let mut state = self.lock_state();
        let stream = RandomStream { seed: state.seed, key: key_of(what), step: state.draws };
        state.draws += 1;
        Ok((stream, format!("{what} {} of seed {}", stream.step, stream.seed)))
    }

    fn create_tensor(
        &self,
        (shape, placement, sbp): (Vec<usize>, &Placement, &NdSbp),
        what: &str,
        element: &mut dyn FnMut(u64) -> f64,
    ) -> Result<GlobalTensor, EagerError> {
        let layout =
            self.build_layout(&TensorType { dtype: self.dtype(), shape }, placement, sbp)?;
        let spot = self.find_spot(&layout);
        self.compare_call(&format!("{what}: {spot}"), &layout.ranks)?;
        self.check_free_memory(&layout)?;
        let local = generate_shard(&layout, self.rank(), element);
        Ok(GlobalTensor::new(self, spot, local))
    }

    /// Checks that the system can give the memory of this rank's shard.
    fn check_free_memory(&self, layout: &Layout) -> Result<(), RuntimeError> {
        let elements = layout.rect(self.rank(), 0, 1).map_or(0, |rect| rect.elements());
        let bytes = elements * layout.dtype.size();
        let given = Vec::<u8>::new().try_reserve_exact(bytes);
        let error = RuntimeError::NoMemory { rank: self.rank(), bytes: bytes as u64 };
        given.map_err(|_| self.lock_state().routines.fail(error))
    }

    /// Compares a call that has no plan between the ranks.
    fn compare_call(&self, text: &str, ranks: &[u32]) -> Result<(), RuntimeError> {
        self.lock_state().routines.compare_call(RoutineCall { text, digest: key_of(text) }, ranks)
    }
}

/// Makes a tensor of no dims from a number. Floating-point types round it.
///
/// # Errors
/// Returns an error if an integer type does not have the number.
pub(crate) fn scalar_element(dtype: DType, value: f64) -> Result<HostTensor, EagerError> {
    let scalar = HostTensor::from_f64(dtype, [], &[value])?;
    match dtype.is_float() || scalar.to_f64() == [value] {
        true => Ok(scalar),
        false => Err(EagerError::Number { value, dtype }),
    }
}

/// Returns the extent of a dim of the whole tensor. It is the sum over ranks that differ only along the axes that split the dim.
fn whole_extent(
    dim: usize,
    placement: &Placement,
    sbp: &NdSbp,
    of: &dyn Fn(u32) -> Option<usize>,
) -> usize {
    let splits = |axis: usize| sbp.0.get(axis) == Some(&Sbp::Split(dim));
    let counts = |position: &usize| {
        let coordinates = placement.coordinates(*position).into_iter().enumerate();
        coordinates.into_iter().all(|(axis, coordinate)| coordinate == 0 || splits(axis))
    };
    let positions = (0..placement.size()).filter(counts);
    positions.filter_map(|position| of(placement.ranks[position])).sum()
}

/// Encodes a type, so that it can be sent.
fn bytes_of(ty: &TensorType) -> Vec<u8> {
    let dtype = DType::ALL.iter().position(|&dtype| dtype == ty.dtype).unwrap_or(0);
    let words = [dtype].into_iter().chain(ty.shape.iter().copied());
    words.flat_map(|word| (word as u64).to_le_bytes()).collect()
}

/// Decodes a type that was sent.
fn type_of(bytes: &[u8]) -> TensorType {
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) as usize);
    let words: Vec<usize> = words.collect();
    let (dtype, shape) = words.split_first().unwrap_or((&0, &[]));
    TensorType {
        dtype: DType::ALL.get(*dtype).copied().unwrap_or(DType::F32),
        shape: shape.to_vec(),
    }
}

/// Returns a digest of bytes.
fn digest_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let rest = rest.iter().map(|&byte| u64::from(byte));
    words.chain(rest).fold(bytes.len() as u64, |digest, word| {
        (digest.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}
