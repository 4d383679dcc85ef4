//! Tests of the operator's executable, chart, channel, pods and plan of faults, which need no cluster.

mod chaos_plan;
mod chart;
mod kstatus;
mod logs;
mod pod_security;
mod pod_template;
mod status_channel;
