//! Process groups: who communicates, and the handles to it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use graphc_comm::JobEnd;
use graphc_comm::job::{Agreement, Job, list_differences};
use graphc_comm::transport::Transport;
use graphc_comm::transport::in_process::Hub;
use graphc_ir::types::DType;

use super::ends::{GroupMembers, TAGS};
use super::engine::{BackgroundThread, CollectiveEngine, What};
use super::error::DistError;
use super::header::GroupOp;
use super::lists::all_gather;
use super::pairs::PointToPoint;

/// The longest wait of a group that is dropped for work that nobody waits for.
const GRACE: Duration = Duration::from_secs(10);

/// Ranks that communicate with each other, seen from one of them; a cheap handle. All ranks of a group call the same
/// collectives in the same order; a message between two ranks needs those two alone. What one group does never
/// interferes with another's.
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Arc<CollectiveEngine>,
    background: BackgroundThread,
    pairs: PointToPoint,
    members: GroupMembers,
    world: Arc<GroupWorld>,
}

/// The data that all groups of a rank share.
struct GroupWorld {
    /// `None` where the ranks are threads.
    job: Option<Arc<Job>>,
    next_tag: AtomicU32,
    /// One at a time agrees on tags.
    founding: Mutex<()>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group(rank {} of {:?})", self.rank(), self.inner.members.ranks)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let settled = self.engine.wait_idle(GRACE) && self.pairs.pairs.wait_idle(GRACE);
        if !settled {
            let rank = self.members.rank();
            let reason = format!("rank {rank} has dropped a group with communication under way");
            self.members.transport.end_job(JobEnd::Program { reason });
        }
    }
}

impl Group {
    /// Makes the group of all ranks of a job, which may run sessions beside it. Called by all of them, in the same order
    /// among their sessions.
    pub fn on(job: &Arc<Job>, timeout: Duration) -> Self {
        let transport = job.new_transport(timeout);
        Self::whole_world(Some(Arc::clone(job)), transport, job.world_size())
    }

    /// Makes the group of all ranks of a hub of threads.
    pub(super) fn of_threads(hub: &Arc<Hub>, rank: u32, size: u32) -> Self {
        Self::whole_world(None, hub.new_transport(rank), size)
    }

    fn whole_world(job: Option<Arc<Job>>, transport: Arc<dyn Transport>, size: u32) -> Self {
        let me = transport.rank() as usize;
        let members = GroupMembers { transport, ranks: (0..size).collect(), me, tag: 0 };
        let (next_tag, founding) = (AtomicU32::new(TAGS), Mutex::default());
        Self::from_members(members, Arc::new(GroupWorld { job, next_tag, founding }))
    }

    fn from_members(members: GroupMembers, world: Arc<GroupWorld>) -> Self {
        let engine = CollectiveEngine::new(members.clone());
        let pairs = PointToPoint::new(members.clone());
        let background = BackgroundThread::default();
        Self { inner: Arc::new(Inner { engine, background, pairs, members, world }) }
    }

    /// Returns the number of ranks of this group.
    pub fn world_size(&self) -> usize {
        self.inner.members.len()
    }

    /// Returns this rank's index in the group.
    pub fn rank(&self) -> usize {
        self.inner.members.me
    }

    /// Returns the ranks of the job that form the group, in its order.
    pub fn ranks(&self) -> &[u32] {
        &self.inner.members.ranks
    }

    /// Returns this process's number on its host; of threads: the rank.
    pub fn local_rank(&self) -> usize {
        match &self.inner.world.job {
            Some(job) => job.local_rank() as usize,
            None => self.inner.members.rank() as usize,
        }
    }

    /// Returns the number of hosts of the job.
    pub fn node_count(&self) -> usize {
        match &self.inner.world.job {
            Some(job) => job.nodes() as usize,
            None => 1,
        }
    }

    /// Returns the job that the ranks are processes of; `None` where they are threads.
    pub fn job(&self) -> Option<&Arc<Job>> {
        self.inner.world.job.as_ref()
    }

    /// Ends the job on all ranks because this one cannot go on.
    pub fn fail(&self, reason: impl std::fmt::Display) {
        let reason = match &self.inner.world.job {
            Some(_) => reason.to_string(),
            None => format!("rank {}: {reason}", self.inner.members.rank()),
        };
        self.inner.members.transport.end_job(JobEnd::Program { reason });
    }

    /// Returns the reason why the job has ended, if it has.
    pub fn end_reason(&self) -> Option<JobEnd> {
        self.inner.members.transport.end_reason()
    }

    /// Makes a group of some of this group's ranks, given by their index here, in this order. All ranks of this group call
    /// it, with the same list; those that are not in it get `None`.
    ///
    /// # Errors
    /// Where a rank is named twice or does not exist, or the ranks do not agree.
    pub fn new_group(&self, ranks: &[usize]) -> Result<Option<Self>, DistError> {
        let what = What { op: GroupOp::NewGroup, reduce: None, dtype: DType::I64, root: None };
        let n = self.world_size();
        let twice = |(index, rank): (usize, &usize)| ranks[..index].contains(rank);
        if ranks.iter().any(|&rank| rank >= n) || ranks.iter().enumerate().any(twice) {
            let reason = format!("{ranks:?} are not different ranks below {n}");
            return Err(self.usage_error(GroupOp::NewGroup, reason));
        }
        let world = &self.inner.world;
        let _founding = world.founding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut mine = vec![i64::from(world.next_tag.load(Ordering::SeqCst))];
        mine.extend(ranks.iter().map(|&rank| rank as i64));
        let all = self.run_collective(what, |ends, call| all_gather(ends, call, &mine))?;
        if let Some(peer) = all.iter().position(|other| other[1..] != mine[1..]) {
            let does = |list: &[i64]| format!("makes a group of {:?}", &list[1..]);
            return Err(self.inner.members.end_on_mismatch(peer, (does(&mine), does(&all[peer]))));
        }
        // Beyond every tag that any of them has used.
        let tag = all.iter().filter_map(|other| u32::try_from(other[0]).ok()).max();
        let tag = tag.unwrap_or(TAGS);
        world.next_tag.store(tag + TAGS, Ordering::SeqCst);
        let Some(me) = ranks.iter().position(|&rank| rank == self.rank()) else { return Ok(None) };
        let of = &self.inner.members;
        let ranks = ranks.iter().map(|&rank| of.ranks[rank]).collect();
        let members = GroupMembers { transport: Arc::clone(&of.transport), ranks, me, tag };
        Ok(Some(Self::from_members(members, Arc::clone(world))))
    }

    /// Compares what the ranks of the group have. All of them call it.
    ///
    /// # Errors
    /// [`DistError::Differ`] on all ranks where they differ, with each field, its values, and who has them; as a collective.
    pub fn agree(&self, what: &str, own: &Agreement) -> Result<(), DistError> {
        let all = self.all_gather(&own.to_bytes()[..])?;
        let all: Vec<Agreement> = all.iter().map(|bytes| Agreement::from_bytes(bytes)).collect();
        match list_differences(&all) {
            None => Ok(()),
            Some(fields) => Err(DistError::Differ { what: what.to_owned(), fields }),
        }
    }

    /// Returns its ranks, with its place among the job's tags.
    pub(crate) fn members(&self) -> &GroupMembers {
        &self.inner.members
    }

    pub(super) fn usage_error(&self, op: GroupOp, reason: String) -> DistError {
        DistError::Usage { rank: self.inner.members.rank(), op: op.name().to_owned(), reason }
    }

    pub(super) fn engine(&self) -> &Arc<CollectiveEngine> {
        &self.inner.engine
    }

    pub(super) fn background(&self) -> &BackgroundThread {
        &self.inner.background
    }

    pub(super) fn pairs(&self) -> &PointToPoint {
        &self.inner.pairs
    }
}
