-- Health of a PyTorchJob, MPIJob, TrainJob or Job, for Argo CD, which loads no libraries for checks in argocd-cm.
-- A field with another shape than expected counts as absent.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end
local function text(value)
  if type(value) == "string" or type(value) == "number" then return tostring(value) end
  return ""
end
-- join adds a separator only between two texts that say something
local function join(first, separator, second)
  if first == "" or second == "" then return first .. second end
  return first .. separator .. second
end

local spec, status, labels = map(map(obj).spec), map(obj.status), map(map(obj.metadata).labels)
local holds, known = {}, false
for _, condition in ipairs(map(status.conditions)) do
  local one = map(condition)
  if type(one.type) == "string" then
    known = true
    if one.status == "True" then holds[one.type] = one end
  end
end

-- An ended job stays what it became, whatever is set afterwards
local failed = holds.Failed or holds.FailureTarget
if failed then
  local said = join(text(failed.reason), ": ", text(failed.message))
  if said == "" then said = "the job has failed" end
  if labels["app.kubernetes.io/part-of"] == "trainyard" then
    local release, namespace = text(labels["app.kubernetes.io/instance"]), text(map(obj.metadata).namespace)
    said = said .. " (trainyard why " .. release .. " -n " .. namespace .. " says more)"
  end
  return {status = "Degraded", message = said}
end
local done = holds.Succeeded or holds.Complete
if done then
  local said = text(done.message)
  if said == "" then said = "the job has ended well" end
  return {status = "Healthy", message = said}
end

-- Kueue suspends what waits in its queue, in the same field that values set
if spec.suspend == true or map(spec.runPolicy).suspend == true then
  local queue = text(labels["kueue.x-k8s.io/queue-name"])
  if queue ~= "" then
    return {status = "Suspended", message = "waits in Kueue's queue " .. queue}
  end
  return {status = "Suspended", message = "suspended by its own spec, no queue is named"}
end

if holds.Restarting then
  return {status = "Progressing", message = join("restarting", ": ", text(holds.Restarting.message))}
end
local progress = text(map(status.trainerStatus).progressPercentage)
if progress ~= "" then
  local left = text(map(status.trainerStatus).estimatedRemainingSeconds)
  if left ~= "" then left = left .. " s left" end
  return {status = "Progressing", message = join(progress .. " % done", ", ", left)}
end
if holds.Running or holds.Created then
  return {status = "Progressing", message = text(map(holds.Running or holds.Created).message)}
end
-- A Job counts its pods, a TrainJob those of each of its jobs
local active
if type(status.active) == "number" then active = status.active end
for _, job in ipairs(map(status.jobsStatus)) do
  local more = map(job).active
  if type(more) == "number" then active = (active or 0) + more end
end
if type(active) == "number" and active > 0 then
  return {status = "Progressing", message = join("at work: " .. active, ", ended well: ", text(status.succeeded))}
end
if known or active then return {status = "Progressing", message = "starts"} end
return {status = "Progressing", message = "waits for its operator to look at it"}
