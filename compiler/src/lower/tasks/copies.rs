//! Brings a value into a layout, once for each layout. Routes share their first steps.

use graphc_ir::ids::{ChannelId, LayoutId, ValueId};
use graphc_ir::mesh::Placement;
use graphc_ir::sbp::NdSbp;
use graphc_plan::{Action, BoxingEntry, Channel};

use super::collect::{Collector, TaskPosition};
use super::task_graph::{BufferId, Task};
use crate::boxing::{BoxingStep, RouteStep};
use crate::lower::LowerError;

impl Collector<'_> {
    /// Returns the buffer that holds a value on this placement in this layout, which is made if there is none.
    ///
    /// Steps on one mesh stand right before the first task that needs them. A send stands right behind the task that
    /// fills what is sent, so that the receiver never waits for what the sender does besides.
    ///
    /// # Errors
    /// Returns an error if the value is not made yet.
    pub(in crate::lower) fn require_buffer(
        &mut self,
        value: ValueId,
        placement: &Placement,
        sbp: &NdSbp,
    ) -> Result<BufferId, LowerError> {
        let home = self.home(value)?.clone();
        let to = self.decisions.layout(home.root, placement, sbp);
        let to_index = self.task_graph.intern_layout(to.clone());
        if let Some(&known) = self.copies.get(&(home.root, to_index)) {
            return Ok(known);
        }
        let from = self.decisions.layout(home.root, &home.placement, &home.sbp);
        let mut buffer = home.buffer;
        let steps = self.router.find_route(&from, &to).steps;
        let crosses = |step: &RouteStep| step.step == BoxingStep::Exchange;
        let crossing = steps.iter().position(crosses).unwrap_or(0);
        for (index, step) in steps.into_iter().enumerate() {
            let after = self.task_graph.intern_layout(step.layout_after.clone());
            buffer = match self.copies.get(&(home.root, after)) {
                Some(&known) => known,
                None => self.add_step(home.root, buffer, after, &step, index < crossing),
            };
        }
        Ok(buffer)
    }

    /// One step of a way; `at_maker` where the value is sent to other ranks afterwards.
    fn add_step(
        &mut self,
        root: ValueId,
        from: BufferId,
        after: LayoutId,
        step: &RouteStep,
        at_maker: bool,
    ) -> BufferId {
        let to = self.new_buffer(root, after);
        self.copies.insert((root, after), to);
        self.record_boxing(root, from, step);
        let kind = step.step.boxing_kind();
        let name = self.report_name(kind.name(), root);
        let ranks = step.layout_after.ranks.clone();
        let action = match step.step {
            BoxingStep::Exchange => return self.add_exchange(root, from, to, after),
            BoxingStep::Slice { .. } | BoxingStep::Mask { .. } => Action::Local { kind },
            BoxingStep::AllReduce { axis, .. }
            | BoxingStep::ReduceScatter { axis, .. }
            | BoxingStep::AllGather { axis, .. }
            | BoxingStep::AllToAll { axis, .. } => {
                Action::Collective { kind, reduce: step.step.reduce(), axis, sequence: 0 }
            }
        };
        let mut task = self.build_task(name, action, vec![from], vec![to], ranks);
        let local = matches!(task.action, Action::Local { .. });
        task.seconds = if local { step.seconds } else { 0.0 };
        task.expected = if local { 0.0 } else { step.seconds };
        // It reads and writes what it leaves.
        task.bytes = if local { 2.0 * step.bytes as f64 } else { 0.0 };
        task.boxing = Some(self.task_graph.boxing.len() - 1);
        if at_maker {
            self.place_at_maker(&mut task, root, from);
        }
        self.task_graph.add_task(task);
        to
    }

    /// Moves a task right behind the one that fills the buffer which it reads.
    fn place_at_maker(&self, task: &mut Task, root: ValueId, from: BufferId) {
        match self.producer_place(from) {
            Some(maker) => place_task(task, maker),
            None => self.place_at_home(task, root),
        }
    }

    /// Moves a task to where the value is made.
    fn place_at_home(&self, task: &mut Task, root: ValueId) {
        if let Ok(home) = self.home(root) {
            place_task(task, home.made);
        }
    }

    /// Adds a send and its receive, which act equally often. A value that is there once a step, and is received anew for each microbatch, is also
    /// sent for each. That begins where the value is made.
    fn add_exchange(
        &mut self,
        root: ValueId,
        from: BufferId,
        to: BufferId,
        after: LayoutId,
    ) -> BufferId {
        let channel = ChannelId::new(self.task_graph.channels.len());
        let before = self.task_graph.buffers[from.0].layout;
        let [made, rate] = [from, to].map(|buffer| self.task_graph.buffers[buffer.0].rate);
        self.task_graph.channels.push(Channel {
            tensor: self.task_graph.buffers[from.0].name.clone(),
            from: before,
            to: after,
            slots: 1,
            rate,
            sequence: 0,
        });
        let ranks = |layout: LayoutId| self.task_graph.layouts[layout.index()].ranks.clone();
        let (senders, receivers) = (ranks(before), ranks(after));
        let name = self.report_name("send", root);
        let mut send =
            self.build_task(name, Action::Send { channel }, vec![from], Vec::new(), senders);
        match made == rate {
            true => self.place_at_maker(&mut send, root, from),
            false => self.place_at_home(&mut send, root),
        }
        send.rate = rate;
        send.boxing = Some(self.task_graph.boxing.len() - 1);
        self.task_graph.add_task(send);
        let name = self.report_name("receive", root);
        let action = Action::Receive { channel };
        let receive = self.build_task(name, action, Vec::new(), vec![to], receivers);
        self.task_graph.add_task(receive);
        to
    }

    fn record_boxing(&mut self, root: ValueId, from: BufferId, step: &RouteStep) {
        let before = &self.task_graph.layouts[self.task_graph.buffers[from.0].layout.index()];
        self.task_graph.boxing.push(BoxingEntry {
            tensor: self.task_graph.buffers[from.0].name.clone(),
            from: before.sbp.clone(),
            to: step.layout_after.sbp.clone(),
            kind: step.step.boxing_kind(),
            axis: step.step.axis(),
            bytes: step.bytes,
            rate: self.rate(root),
        });
    }
}

fn place_task(task: &mut Task, at: TaskPosition) {
    (task.anchor, task.phase) = (at.anchor, at.phase);
    (task.stage, task.chunk) = (at.stage, at.chunk);
}
