//! Tests of the operator's executable, channel, pods and plan of faults, which need no cluster.

mod chaos_plan;
mod logs;
mod pod_template;
mod status_channel;
