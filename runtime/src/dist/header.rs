//! Headers: what stands before the first message between two ranks in each operation, and says what the sender does. The
//! receiver compares it with what itself does, so programs that disagree end with an error that says how.

use graphc_ir::types::DType;

use super::reduce::ReduceOp;

/// Bytes of a header.
pub(super) const HEADER: usize = 32;
const _: () = assert!(HEADER <= graphc_comm::transport::HEAD, "it is the head of a message");

/// The operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum GroupOp {
    Send = 1,
    Broadcast,
    AllReduce,
    Reduce,
    AllGather,
    Gather,
    Scatter,
    ReduceScatter,
    AllToAll,
    Barrier,
    NewGroup,
}

const OPS: [GroupOp; 11] = [
    GroupOp::Send,
    GroupOp::Broadcast,
    GroupOp::AllReduce,
    GroupOp::Reduce,
    GroupOp::AllGather,
    GroupOp::Gather,
    GroupOp::Scatter,
    GroupOp::ReduceScatter,
    GroupOp::AllToAll,
    GroupOp::Barrier,
    GroupOp::NewGroup,
];

impl GroupOp {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Broadcast => "broadcast",
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::AllGather => "all_gather",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::NewGroup => "new_group",
        }
    }

    /// Returns the names of all, in the order of [`GroupOp::index`].
    pub(super) fn all_names() -> Vec<String> {
        OPS.iter().map(|op| op.name().to_owned()).collect()
    }

    pub(super) fn index(self) -> usize {
        self as usize - 1
    }
}

/// The call of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GroupCall {
    pub(super) op: GroupOp,
    pub(super) reduce: Option<ReduceOp>,
    pub(super) dtype: DType,
    /// The rank in the group that is the root, where there is one.
    pub(super) root: Option<usize>,
    /// The number of operations that came before in the group, or between the pair.
    pub(super) number: u64,
}

impl GroupCall {
    /// Encodes the header of `bytes` bytes to one peer.
    pub(super) fn encode_header(&self, bytes: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[0] = self.op as u8;
        header[1] = self.reduce.map_or(0, ReduceOp::code);
        header[2] = dtype_code(self.dtype);
        header[8..16].copy_from_slice(&self.root.map_or(u64::MAX, |r| r as u64).to_le_bytes());
        header[16..24].copy_from_slice(&self.number.to_le_bytes());
        header[24..].copy_from_slice(&(bytes as u64).to_le_bytes());
        header
    }

    /// Checks a peer's header and returns how many bytes the peer sends; or what this rank does and what the peer does.
    pub(super) fn check_header(
        &self,
        theirs: &[u8],
        expected: Option<usize>,
    ) -> Result<usize, (String, String)> {
        let Some(theirs) = theirs.first_chunk::<HEADER>() else {
            let mine = describe_header(&self.encode_header(expected.unwrap_or(0)));
            return Err((mine, format!("has sent {} bytes without a header", theirs.len())));
        };
        let bytes = read_word(theirs, 24) as usize;
        let mine = self.encode_header(expected.unwrap_or(bytes));
        if mine == *theirs && bytes.is_multiple_of(self.dtype.size()) {
            return Ok(bytes);
        }
        Err((describe_header(&mine), describe_header(theirs)))
    }
}

fn dtype_code(dtype: DType) -> u8 {
    DType::ALL.iter().position(|&other| other == dtype).map_or(0, |index| index as u8)
}

fn read_word(header: &[u8; HEADER], at: usize) -> u64 {
    header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Describes a header: `does all_reduce(sum) of f32[4] as operation 7 of the group`.
fn describe_header(header: &[u8; HEADER]) -> String {
    let op = OPS.iter().find(|&&op| op as u8 == header[0]).map_or("something else", |op| op.name());
    let reduce = match header[1] {
        0 => String::new(),
        code => format!("({})", ReduceOp::name_of(code)),
    };
    let dtype = DType::ALL.get(header[2] as usize);
    let elements = read_word(header, 24) as usize / dtype.map_or(1, |dtype| dtype.size());
    let dtype = dtype.map_or("unknown", |dtype| dtype.name());
    let root = match read_word(header, 8) {
        u64::MAX => String::new(),
        root => format!(" with root {root}"),
    };
    let number = read_word(header, 16);
    format!("does {op}{reduce} of {dtype}[{elements}]{root} as operation {number}")
}
