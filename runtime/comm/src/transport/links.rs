//! The choice among shared memory and networks.

/// The memory or network that messages take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportLinks {
    /// Shared memory between processes of one host; between hosts TCP, or MPI where it has started the processes.
    #[default]
    Auto,
    /// TCP alone.
    Tcp,
    /// MPI alone.
    #[cfg(feature = "mpi")]
    Mpi,
}
