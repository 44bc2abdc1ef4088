/* A Vulkan layer whose device is lost: after LOST_AFTER submissions each further one fails with VK_ERROR_DEVICE_LOST, as
 * it does when a driver resets a card. With LOST_ONCE, a file that is not there, only in the first process that comes so
 * far: it makes the file. Nothing else is changed. tests/gpu names it in VK_INSTANCE_LAYERS; `build` compiles it.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#define EXPORT __attribute__((visibility("default")))

static PFN_vkGetInstanceProcAddr next_instance_function;
static PFN_vkGetDeviceProcAddr next_device_function;
static PFN_vkQueueSubmit next_submit;
static atomic_long submissions;

static int is_lost(void) {
  static atomic_int lost;
  const char *after = getenv("LOST_AFTER"), *once = getenv("LOST_ONCE");
  if (after == NULL || atomic_fetch_add(&submissions, 1) < atol(after)) return 0;
  if (once == NULL || atomic_load(&lost)) return 1;
  int file = open(once, O_CREAT | O_EXCL | O_WRONLY, 0600);
  if (file >= 0) {
    close(file);
    atomic_store(&lost, 1);
  }
  return file >= 0;
}

static VkResult lost_submit(VkQueue queue, uint32_t count, const VkSubmitInfo *submits, VkFence fence) {
  if (is_lost()) return VK_ERROR_DEVICE_LOST;
  return next_submit(queue, count, submits, fence);
}

static VkResult lost_create_instance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *memory, VkInstance *made) {
  VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
  while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO) {
    link = (VkLayerInstanceCreateInfo *)link->pNext;
  }
  next_instance_function = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
  link->u.pLayerInfo = link->u.pLayerInfo->pNext;
  return ((PFN_vkCreateInstance)next_instance_function(NULL, "vkCreateInstance"))(info, memory, made);
}

static VkResult lost_create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *memory, VkDevice *made) {
  VkLayerDeviceCreateInfo *link = (VkLayerDeviceCreateInfo *)info->pNext;
  while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO) {
    link = (VkLayerDeviceCreateInfo *)link->pNext;
  }
  PFN_vkGetInstanceProcAddr instance_function = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
  next_device_function = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
  link->u.pLayerInfo = link->u.pLayerInfo->pNext;
  VkResult result = ((PFN_vkCreateDevice)instance_function(NULL, "vkCreateDevice"))(physical, info, memory, made);
  if (result == VK_SUCCESS) next_submit = (PFN_vkQueueSubmit)next_device_function(*made, "vkQueueSubmit");
  return result;
}

static PFN_vkVoidFunction own(const char *name);

EXPORT PFN_vkVoidFunction vkGetDeviceProcAddr(VkDevice device, const char *name) {
  PFN_vkVoidFunction found = own(name);
  return found != NULL ? found : next_device_function(device, name);
}

EXPORT PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char *name) {
  PFN_vkVoidFunction found = own(name);
  return found != NULL ? found : next_instance_function(instance, name);
}

static PFN_vkVoidFunction own(const char *name) {
  if (strcmp(name, "vkGetInstanceProcAddr") == 0) return (PFN_vkVoidFunction)vkGetInstanceProcAddr;
  if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (PFN_vkVoidFunction)vkGetDeviceProcAddr;
  if (strcmp(name, "vkCreateInstance") == 0) return (PFN_vkVoidFunction)lost_create_instance;
  if (strcmp(name, "vkCreateDevice") == 0) return (PFN_vkVoidFunction)lost_create_device;
  if (strcmp(name, "vkQueueSubmit") == 0) return (PFN_vkVoidFunction)lost_submit;
  return NULL;
}
