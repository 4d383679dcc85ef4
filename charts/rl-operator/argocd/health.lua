-- The health of an RLTrainingJob for Argo CD. A job that trains is healthy: a sync does not wait for days until it is complete.
local health = {status = "Progressing", message = "waiting for the operator"}
if obj.status == nil or obj.status.conditions == nil then
  return health
end
if obj.status.observedGeneration ~= nil and obj.status.observedGeneration ~= obj.metadata.generation then
  health.message = "a change of the specification was not seen yet"
  return health
end
local conditions = {}
for _, condition in ipairs(obj.status.conditions) do
  conditions[condition.type] = condition
end
local function is_true(name)
  return conditions[name] ~= nil and conditions[name].status == "True"
end
local function answer(status, name)
  return {status = status, message = conditions[name].message}
end
if is_true("Failed") then
  return answer("Degraded", "Failed")
end
if is_true("Stalled") then
  return answer("Degraded", "Stalled")
end
if is_true("Complete") then
  return answer("Healthy", "Complete")
end
if is_true("Suspended") then
  if conditions["Suspended"].reason == "Queued" then
    return answer("Progressing", "Suspended")
  end
  return answer("Suspended", "Suspended")
end
if is_true("Reconciling") then
  return answer("Progressing", "Reconciling")
end
if is_true("PodsReady") then
  local progress = obj.status.progress
  if progress ~= nil and progress.step ~= nil and progress.numSteps ~= nil then
    return {status = "Healthy", message = string.format("step %d of %d", progress.step, progress.numSteps)}
  end
  return answer("Healthy", "PodsReady")
end
return health
